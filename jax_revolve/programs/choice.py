"""Which loops of a program are checkpointed, and with which options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from jax_revolve.jaxprs.equations import varies_unevenly
from jax_revolve.loops.options import LoopOptions, try_storage
from jax_revolve.programs.find import FoundLoop, Key, Replacement, resolved
from jax_revolve.programs.share import (
    Outlay,
    Outlays,
    of_each_step,
    of_plan,
    of_program,
    quickest,
)
from jax_revolve.schedule.arguments import Memory, TooLittleMemory, check_integer, parse_bytes
from jax_revolve.schedule.options import Options, check_bound
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.selection import candidates

Where: TypeAlias = Callable[[FoundLoop], bool | dict[str, Any]]
"""Whether to checkpoint a loop, or the options for it."""


@dataclass(frozen=True)
class _LoopOptions(LoopOptions):
    """The options of one loop, named as the arguments of the loops."""

    max_steps: int | None = None

    def replacement(self, loop: FoundLoop) -> Replacement:
        if loop.length is not None:
            plan, bound = self.plan_for(loop.length, is_while=False), None
        elif self.max_steps is None and self.checkpoints in (None, "all"):
            return Replacement(loop, None, None)  # without a bound, there is no plan
        elif varies_unevenly(loop._eqn):
            raise NotImplementedError(
                f"the loop {loop.name!r} of {loop.source} takes different numbers of steps on "
                "different devices, and part of its carry is the same on all of them by its type: "
                "jax_revolve cannot checkpoint it. Pass its initial carry through "
                "jax.lax.pcast(carry, axes, to='varying'), or leave it out with where."
            )
        else:
            plan, bound = self.plan_for(self.max_steps, is_while=True), self.max_steps
        try_storage(plan)
        return Replacement(loop, plan, bound, self.listener)


@dataclass(frozen=True)
class Choice:
    """The arguments of `checkpoint_loops`."""

    checkpoints: Checkpoints = None
    memory: Memory = None
    min_length: int | None = None
    max_steps: int | None = None
    where: Where | None = None

    def __post_init__(self) -> None:
        LoopOptions(self.checkpoints, memory=self.memory)
        check_bound(self.max_steps)
        if self.min_length is not None:
            check_integer("min_length", self.min_length, least=1)
        if self.where is not None and not callable(self.where):
            raise TypeError(
                "where must be a function from a loop to a bool or a dict, or None, but is "
                f"{self.where!r} of type {type(self.where).__name__}."
            )

    @property
    def shortest(self) -> int:
        """The fewest steps of a scan: by default 16, and 2 if loops share memory, where a few heavy
        steps count as much as many small ones."""
        return self.min_length or (16 if self.memory is None else 2)

    def replacements(self, loops: Sequence[FoundLoop]) -> dict[Key, Replacement]:
        sharing: dict[Key, tuple[Replacement, int | None]] = {}
        own: dict[Key, Replacement] = {}
        for loop in loops:
            if loop.is_own or (options := self._options(loop)) is None:
                continue
            replacement = options.replacement(loop)
            given = (options.checkpoints, options.memory, options.plan, options.storage)
            is_open = replacement.plan is not None and all(option is None for option in given)
            if self.memory is not None and is_open:
                sharing[loop.key] = replacement, options.block_size
            else:
                own[loop.key] = replacement
        if self.memory is None or not (sharing or any(loop.is_own for loop in loops)):
            return own
        return own | _shared(loops, sharing, own, parse_bytes(self.memory))

    def _options(self, loop: FoundLoop) -> _LoopOptions | None:
        """The options of a loop; `None` for a loop that is left alone."""
        if loop.length is not None and loop.length < self.shortest:
            return None
        options = _LoopOptions(self.checkpoints, max_steps=self.max_steps)
        said = True if self.where is None else self.where(loop)
        if isinstance(said, bool):
            return options if said else None
        if not isinstance(said, dict):
            raise TypeError(
                f"where must return a bool or a dict, but returns {said!r} of type "
                f"{type(said).__name__} for the loop {loop.name!r} of {loop.source}."
            )
        allowed = [field.name for field in fields(options)]
        for name in said:
            if name not in allowed:
                raise ValueError(
                    "where must return a bool or a dict with some of the keys "
                    f"{', '.join(allowed)}, but the dict that it returns for the loop "
                    f"{loop.name!r} of {loop.source} has the key {name!r}."
                )
        if said.get("memory") is not None or said.get("plan") is not None:
            said = {"checkpoints": None, **said}
        return replace(options, **said)


def _shared(
    loops: Sequence[FoundLoop],
    sharing: Mapping[Key, tuple[Replacement, int | None]],
    own: Mapping[Key, Replacement],
    memory: int,
) -> dict[Key, Replacement]:
    """The replacements of the loops in `sharing`, which share the memory, with the least predicted
    time together. `sharing` has their default replacements and block sizes. Other loops have `own`
    replacements. A loop of this library keeps its plan, and takes its part of the memory."""

    fewest = {
        key: replace(default, plan=Plan(_length(default), 1, block_size or 1))
        for key, (default, block_size) in sharing.items()
    }
    decided = loops[0].program.decided({**own, **fewest})

    def with_plans(outlay: Outlay) -> dict[Key, Replacement]:
        return {key: replace(sharing[key][0], plan=plan) for key, plan in outlay.plans}

    def outlays_of(loop: FoundLoop, inside: Outlays) -> Outlays:
        key, steps = loop.key, loop.length or 1
        if key in own and own[key].plan is not None:
            # Its own memory also covers the loops inside its steps.
            return [replace(o, time=o.time * steps) for o in inside]
        default, block_size = sharing.get(key, (None, None))
        plan = default.plan if default else loop.own_plan
        measured, is_while = decided.get(key), loop.kind == "while"
        if default is None and (plan is None or measured is None):
            return [of_each_step(o, steps) for o in inside]

        def outlay(plan: Plan | Options, inner: Outlay) -> Outlay:
            assert measured is not None
            # The residuals include the checkpoints of the loops inside.
            sizes, held = measured.sizes, inner.held - inside[0].held
            sizes = sizes._replace(residuals=sizes.residuals + held, alone=sizes.alone + held)
            plan = resolved(plan, measured.plan.length, sizes, is_while=is_while)
            found = of_plan(plan, sizes, inner, is_while=is_while)
            return replace(found, plans=((key, plan), *inner.plans) if default else inner.plans)

        assert plan is not None
        if default is None:
            outlays = [outlay(plan, inside[0])]
            for inner in inside[1:]:
                try:
                    outlays.append(outlay(plan, inner))
                except TooLittleMemory:  # its own memory is too small
                    outlays.append(outlays[0])
            return outlays
        length, least = _length(default), Plan(_length(default), 1, block_size or 1)
        if measured is None:
            return [replace(o, plans=((key, least), *o.plans)) for o in inside]
        plans = (*candidates(length, block_size=block_size, is_while=is_while), plan)
        every = [outlay(plan, inner) for inner in inside for plan in plans]
        return [outlay(least, inside[0]), outlay(plan, inside[1]), *every]

    outlays = of_program(loops, outlays_of)
    chosen = quickest(outlays, memory)
    if chosen is None:
        sharers = [loop for loop in loops if loop.is_own or loop.key in sharing]
        names = ", ".join(f"{loop.name} of {loop.source}" for loop in sharers)
        raise TooLittleMemory(
            outlays[0].memory,
            f"memory must be at least {outlays[0].memory} bytes here, but is {memory}: with "
            f"less, the loops that share it cannot be checkpointed ({names}). Pass at least "
            "that much, leave out loops of jax.lax with where, or give less memory to those of "
            "jax_revolve, which keep their plans.",
        )
    return with_plans(chosen)


def _length(replacement: Replacement) -> int:
    length = replacement.max_steps if replacement.of.length is None else replacement.of.length
    assert length is not None
    return length
