"""Which loops of a program are checkpointed, and with which options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from jax_revolve.loops.options import Options, check_bound
from jax_revolve.loops.try_storage import try_storage
from jax_revolve.programs.find import FoundLoop, resolved
from jax_revolve.programs.location import Key, Replacement
from jax_revolve.programs.share import Nests, Outlay, Outlays, SharingLoop, of_each_step
from jax_revolve.schedule.arguments import Memory, TooLittleMemory, parse_bytes
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints, check_integer

Where: TypeAlias = Callable[[FoundLoop], bool | dict[str, Any]]
"""Whether to checkpoint a loop, or the options for it."""


@dataclass(frozen=True)
class _LoopOptions(Options):
    """The options of one loop, named as the arguments of the loops."""

    max_steps: int | None = None

    @property
    def is_without_bound(self) -> bool:
        """Whether a while loop with these options has no plan, and so no reverse mode."""
        return self.max_steps is None and self.checkpoints in (None, "all")

    def replacement(self, loop: FoundLoop) -> Replacement:
        if loop.length is not None:
            plan, bound = self.for_scan(loop.length), None
        elif self.is_without_bound:
            return Replacement(None, None)
        else:
            plan, bound = self.for_bound(self.max_steps), self.max_steps
        try_storage(plan)
        return Replacement(plan, bound, self.listener)


@dataclass(frozen=True)
class Choice:
    """The arguments of `checkpoint_loops`."""

    checkpoints: Checkpoints
    memory: Memory
    min_length: int
    max_steps: int | None
    where: Where | None

    def check(self) -> None:
        Options(self.checkpoints, memory=self.memory)
        check_bound(self.max_steps)
        check_integer("min_length", self.min_length, least=1)
        if self.where is not None and not callable(self.where):
            raise TypeError(
                "where must be a function from a loop to a bool or a dict, or None, but is "
                f"{self.where!r} of type {type(self.where).__name__}."
            )

    def replacements(self, loops: Sequence[FoundLoop]) -> dict[Key, Replacement]:
        """The replacements of the loops that are checkpointed."""
        loops = [loop for loop in loops if not loop.is_own]
        chosen = {loop: options for loop in loops if (options := self._options(loop)) is not None}
        sharing = {
            loop: options
            for loop, options in chosen.items()
            if self.memory is not None
            and options.checkpoints is None
            and options.memory is None
            and options.plan is None
            and options.storage is None
            and (loop.length is not None or not options.is_without_bound)
        }
        own = {
            loop.key: options.replacement(loop)
            for loop, options in chosen.items()
            if loop not in sharing
        }
        if not sharing:
            return own
        return {**own, **_shared(loops, sharing, own, parse_bytes(self.memory))}

    def _options(self, loop: FoundLoop) -> _LoopOptions | None:
        """`None` for a loop that is left alone."""
        if loop.length is not None and loop.length < self.min_length:
            return None
        options = _LoopOptions(self.checkpoints, max_steps=self.max_steps)
        said = True if self.where is None else self.where(loop)
        if isinstance(said, dict):
            options = _changed(options, said, loop)
        elif not isinstance(said, bool):
            raise TypeError(
                f"where must return a bool or a dict, but returns {said!r} of type "
                f"{type(said).__name__} for the loop {loop.name!r} of {loop.source}."
            )
        elif not said:
            return None
        if not options.is_without_bound and loop.varies_unevenly:
            raise NotImplementedError(
                f"the loop {loop.name!r} of {loop.source} takes different numbers of steps on "
                "different devices, and part of its carry is the same on all of them by its type: "
                "jax_revolve cannot checkpoint it. Pass its initial carry through "
                "jax.lax.pcast(carry, axes, to='varying'), or leave it out with where."
            )
        return options


def _changed(options: _LoopOptions, said: dict[str, Any], loop: FoundLoop) -> _LoopOptions:
    allowed = [field.name for field in fields(options)]
    for name in said:
        if name not in allowed:
            raise ValueError(
                f"where must return a bool or a dict with some of the keys {', '.join(allowed)}, "
                f"but the dict that it returns for the loop {loop.name!r} of {loop.source} has the "
                f"key {name!r}."
            )
    if said.get("memory") is not None or said.get("plan") is not None:
        said = {"checkpoints": None, **said}
    options = replace(options, **said)
    options.replacement(loop)  # checks the values
    return options


def _shared(
    loops: Sequence[FoundLoop],
    sharing: Mapping[FoundLoop, _LoopOptions],
    own: Mapping[Key, Replacement],
    memory: int,
) -> dict[Key, Replacement]:
    """The replacements of the loops that share the memory, which fit together with the least
    predicted time. The others have their `own` ones."""

    def with_plans(outlay: Outlay) -> dict[Key, Replacement]:
        plans = dict(outlay.plans)
        return {
            loop.key: Replacement(plans[loop.key], options.max_steps, options.listener)
            for loop, options in sharing.items()
            if loop.key in plans
        }

    def outlays_of(loop: FoundLoop, inside: Outlays) -> Outlays:
        options = sharing.get(loop)
        if options is None:
            # A loop with its own plan has its own memory for the loops inside its steps.
            has_plan = loop.key in own and own[loop.key].plan is not None
            steps = loop.length or 1
            return inside(
                lambda o: replace(o, time=o.time * steps) if has_plan else of_each_step(o, steps)
            )
        default = options.replacement(loop)
        length = options.max_steps if loop.length is None else loop.length
        assert length is not None
        report = loop.measure({**own, **with_plans(inside.least)}, default)
        if report is None:
            plan = Plan(length, 1, options.block_size or 1)
            return inside(lambda o: replace(o, plans=((loop.key, plan), *o.plans)))

        def sizes(held: int) -> Sizes:
            more = held - inside.least.held
            return report.sizes._replace(
                residuals=report.sizes.residuals + more, alone=report.sizes.alone + more
            )

        def default_plan(sizes: Sizes) -> Plan:
            assert default.plan is not None
            plan = resolved(default.plan, sizes)
            assert isinstance(plan, Plan)
            return plan

        return SharingLoop(
            loop.key, length, options.block_size, report.is_while, default_plan, sizes
        ).outlays(inside)

    outlays = Nests(loops).outlays(outlays_of)
    chosen = outlays.quickest(memory)
    if chosen is None:
        names = ", ".join(f"{loop.name} of {loop.source}" for loop in sharing)
        raise TooLittleMemory(
            outlays.least.memory,
            f"memory must be at least {outlays.least.memory} bytes here, but is {memory}: with "
            f"less, the loops that share it cannot be checkpointed ({names}). Pass at least "
            "that much, or leave out loops with where.",
        )
    return with_plans(chosen)
