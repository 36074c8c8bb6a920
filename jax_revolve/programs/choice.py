"""Which loops of a program are checkpointed, and with which options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from jax_revolve.jaxprs.equations import varies_unevenly
from jax_revolve.loops.options import LoopOptions, try_storage
from jax_revolve.programs.budget import Budget, SharedPlan
from jax_revolve.programs.find import FoundLoop, Key, Replacement
from jax_revolve.schedule.arguments import Memory, check_integer, parse_bytes
from jax_revolve.schedule.options import check_bound
from jax_revolve.schedule.planning import Checkpoints

MaxSteps: TypeAlias = int | Literal["loop"] | None
"""The most steps of while loops, or that each condition is to say it."""

Where: TypeAlias = Callable[[FoundLoop], bool | dict[str, Any]]
"""Whether to checkpoint a loop, or the options for it."""


def check_max_steps(max_steps: MaxSteps) -> int | None:
    """Refuse what is no bound. Returns the one that is given, if any."""
    if not isinstance(max_steps, str):
        return check_bound(max_steps)
    if max_steps != "loop":
        raise ValueError(f'max_steps must be "loop", None or an int, but is {max_steps!r}.')
    return None


@dataclass(frozen=True)
class _LoopOptions(LoopOptions):
    """The options of one loop, named as the arguments of the loops."""

    max_steps: MaxSteps = None

    def bound_of(self, loop: FoundLoop) -> int | None:
        """The most steps of a while loop, as the user says and, if asked, its condition."""
        given = check_max_steps(self.max_steps)
        if loop.bound is None or (self.max_steps is None and not loop.is_equinox):
            return given
        return loop.bound if given is None else min(given, loop.bound)

    def replacement(self, loop: FoundLoop) -> Replacement | None:
        """What replaces a loop; `None` if Equinox's derivative of it must stay."""
        bound = self.bound_of(loop)
        if loop.length is not None:
            plan, bound = self.plan_for(loop.length, is_while=False), None
        elif bound is None and self.checkpoints in (None, "all"):
            # Without a bound, there is no plan.
            return None if loop.is_equinox else Replacement(loop, None, None)
        elif varies_unevenly(loop._eqn):
            raise NotImplementedError(
                f"the loop {loop.name!r} of {loop.source} takes different numbers of steps on "
                "different devices, and part of its carry is the same on all of them by its type: "
                "jax_revolve cannot checkpoint it. Pass its initial carry through "
                "jax.lax.pcast(carry, axes, to='varying'), or leave it out with where."
            )
        else:
            plan = self.plan_for(bound, is_while=True)
        try_storage(plan)
        return Replacement(loop, plan, bound, self.listener)


@dataclass(frozen=True)
class Choice:
    """The arguments of `checkpoint_loops`."""

    checkpoints: Checkpoints = None
    memory: Memory = None
    min_length: int | None = None
    max_steps: MaxSteps = None
    where: Where | None = None

    def __post_init__(self) -> None:
        LoopOptions(self.checkpoints, memory=self.memory)
        check_max_steps(self.max_steps)
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

    def replacements(
        self, loops: Sequence[FoundLoop]
    ) -> tuple[dict[Key, Replacement], Budget | None]:
        """The loops in place of lax's, and the memory that loops share."""
        sharing: dict[Key, tuple[Replacement, int | None]] = {}
        own: dict[Key, Replacement] = {}
        for loop in loops:
            if loop.is_own or (options := self._options(loop)) is None:
                continue
            if (replacement := options.replacement(loop)) is None:
                continue
            given = (options.checkpoints, options.memory, options.plan, options.storage)
            is_open = replacement.plan is not None and all(option is None for option in given)
            if self.memory is not None and is_open:
                sharing[loop.key] = replacement, options.block_size
            else:
                own[loop.key] = replacement
        if self.memory is None or not (sharing or any(loop.is_own for loop in loops)):
            return own, None
        budget = Budget(parse_bytes(self.memory), loops, sharing, own)
        shared = {
            key: replace(default, plan=SharedPlan(memory=budget.memory, budget=budget, key=key))
            for key, (default, _) in sharing.items()
        }
        return own | shared, budget

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
        allowed = [field.name for field in fields(options) if not field.kw_only]  # the user's
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
