"""Which loops of a program are checkpointed, and with which options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from jax_revolve.jaxprs.equations import varies_unevenly
from jax_revolve.loops.options import LoopOptions, try_storage
from jax_revolve.programs.budget import Budget, SharedPlan
from jax_revolve.programs.find import FoundLoop, Key, Replacement
from jax_revolve.schedule.arguments import Memory, check_integer, parse_bytes
from jax_revolve.schedule.options import check_bound
from jax_revolve.schedule.planning import Checkpoints

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

    def replacements(
        self, loops: Sequence[FoundLoop]
    ) -> tuple[dict[Key, Replacement], Budget | None]:
        """The loops in place of lax's, and the memory that loops share."""
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
