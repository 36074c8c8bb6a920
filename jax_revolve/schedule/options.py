"""What the user asks of a loop's plan, and the plan that it becomes once the sizes are known."""

from dataclasses import dataclass, field, fields, replace
from math import isqrt

from jax_revolve.schedule import binomial, cost
from jax_revolve.schedule.actions import scheduled_blocks
from jax_revolve.schedule.arguments import Memory, check_integer, parse_bytes, refuse_conflicts
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints, is_zero, plan
from jax_revolve.schedule.selection import (
    MOST_REPETITIONS_BY_DEFAULT,
    MOST_REPETITIONS_TO_A_BOUND,
    equal_blocks,
    quickest,
    walked_back,
    walked_blocks,
)
from jax_revolve.schedule.storage import (
    Compressed,
    HostMemory,
    Storage,
    check_storage,
    codec_of,
    with_room,
    with_transfer,
)

LONGEST = 2**31 - 2
"""The most steps of a scan. Positions are 32-bit integers on the device, and the end of the loop
counts as one more step."""

LARGEST_BOUND = 2**31 - 1
"""The most steps of a while loop, whose counter goes up to the bound."""


@dataclass(frozen=True)
class Options:
    """The options of a loop that decide its plan. Making the object checks them, so that their
    errors come before `jax.lax`'s."""

    checkpoints: Checkpoints = None
    block_size: int | None = None
    memory: Memory = None
    storage: Storage | None = None
    plan: Plan | None = None
    is_reversible: bool = field(default=False, kw_only=True)
    """Whether the step has an inverse, so that blocks are walked back."""

    def __post_init__(self) -> None:
        refuse_conflicts(vars(self))
        self._plan_by_options(0, None, is_while=False)
        if self.is_reversible and self.codec is not None:
            raise ValueError(
                f"storage must not be Compressed where an inverse is given, but is in {self.codec}:"
                " the way back is checked by exact checkpoints. Leave one of them out."
            )
        block_size = getattr(self.plan, "block_size", self.block_size)
        if self.is_reversible and block_size == 1 and (self.plan is None or self.plan.length > 1):
            raise ValueError(
                "block_size must be at least 2 where an inverse is given, but is 1: nothing is "
                "walked back then. Leave the inverse out, or pass a larger block_size."
            )
        if not isinstance(self.plan, Plan | None):
            raise TypeError(
                "plan must be a Plan, made with jax_revolve.plan(length, checkpoints), "
                f"or None, but is {self.plan!r} of type {type(self.plan).__name__}."
            )

    @property
    def codec(self) -> Compressed | None:
        """How checkpoints are encoded."""
        return codec_of(self.storage) if self.plan is None else self.plan.codec

    def plan_for(
        self, length: int | None, *, is_while: bool, sizes: Sizes | None = None
    ) -> "Plan | Options | None":
        """The plan of a scan of `length` steps, or of a while loop of at most as many: `None` if it
        cannot be reversed, and these options if the plan depends on `sizes` that are not given."""
        if is_while:
            length = check_bound(length)
            if self.plan is not None and self.plan.levels:
                raise ValueError(
                    f"plan must have no levels for a while loop, but is {self.plan}: only a loop "
                    "of known length has parts of static length. Make the plan without levels."
                )
            if length is None:
                self._check_without_bound()
                if self.checkpoints is None:
                    return None
                length = LARGEST_BOUND
        assert length is not None
        if not is_while and length > LONGEST:
            raise ValueError(
                f"length must be at most {LONGEST}, but is {length}. Nest two loops instead."
            )
        if self.plan is None:
            if found := self._plan_by_options(length, sizes, is_while=is_while):
                return replace(found, codec=self.codec)
            return Options(**{f.name: getattr(self, f.name) for f in fields(Options)})
        if self.plan.length != length:
            raise ValueError(
                f"plan must be for a loop of {length} steps, but is for {self.plan.length}: "
                f"{self.plan}. Make it with plan({length}, ...)."
            )
        return self.plan

    def resolve(self, length: int | None, sizes: Sizes, *, is_while: bool) -> Plan:
        """The plan of such a loop, which can be reversed, for steps of these sizes."""
        found = self.plan_for(length, is_while=is_while, sizes=sizes)
        assert isinstance(found, Plan)
        return found

    def _check_without_bound(self) -> None:
        """Refuse options whose plan depends on the bound."""
        storage = check_storage(self.storage)
        is_limited = storage is not None and bool(storage.checkpoints or storage.memory)
        for name, value, allowed in (
            ("plan", self.plan, "None"),
            ("checkpoints", self.checkpoints if self.checkpoints == "all" else None, "an int"),
            ("memory", self.memory, "None"),
            ("storage", None if is_limited and is_zero(self.checkpoints) else storage, "None"),
        ):
            if value is not None:
                raise ValueError(
                    f"{name} must be {allowed} where max_steps is None, but is {value!r}: the plan "
                    "depends on the bound then. Pass max_steps, or an int for checkpoints, which "
                    "is 0 with HostMemory(checkpoints=...) to keep that many in the host's memory."
                )

    def _plan_by_options(self, length: int, sizes: Sizes | None, *, is_while: bool) -> Plan | None:
        """The plan of options without a `plan`; `None` if it depends on sizes that are unknown."""
        checkpoints, storage = self.checkpoints, check_storage(self.storage)
        budget = None if self.memory is None else parse_bytes(self.memory)
        k = self.block_size
        if k is not None:
            k = min(check_integer("block_size", k, least=1), max(length, 1))
        elif self.is_reversible and budget is None:
            wanted = checkpoints if isinstance(checkpoints, int) else 0
            k = equal_blocks(length, wanted or walked_blocks(length)).block_size
            checkpoints = "all" if checkpoints is None else checkpoints
        elif self.is_reversible and storage is not None:
            raise ValueError(
                f"block_size must be given where inverse, memory and storage are, but is "
                f"None for memory={self.memory!r} and storage={storage!r}."
            )
        is_open = checkpoints is None and (k is None or budget is not None)
        most = MOST_REPETITIONS_TO_A_BOUND if is_while else MOST_REPETITIONS_BY_DEFAULT
        if checkpoints is None and not is_open:
            checkpoints = binomial.fewest_checkpoints(scheduled_blocks(length, k or 1), most)
        on_device = not is_zero(checkpoints)
        is_priced = on_device and storage is not None and storage.transfer is None
        if storage is not None and (is_priced or storage.memory is not None):
            if sizes is None:
                if not is_open and (on_device or not isinstance(storage, HostMemory)):
                    plan(length, checkpoints, block_size=k)  # for its errors
                return None
            # A while loop stores the start of its tail there, too.
            storage = with_room(storage, sizes.checkpoint, int(is_while and on_device))
            if on_device:
                storage = with_transfer(storage, cost.transfer(storage, sizes))
        if not is_open:
            return plan(length, checkpoints, block_size=k, storage=storage)
        if sizes is None:
            return None
        ample = 0
        if budget is None:
            # Room for the default number of carries; if no step is advanced twice, for as many as
            # nested scans take.
            default = binomial.fewest_checkpoints(scheduled_blocks(length, 1), most)
            counts = default, max(isqrt(4 * length), 1)
            budget, ample = (cost.memory(Plan(length, count), sizes) for count in counts)
            ample = 0 if is_while or storage else ample
        if sizes.is_walked_back and k is None:
            return walked_back(length, sizes, budget)
        how = {"block_size": k, "is_while": is_while}
        return quickest(length, sizes, budget, storage=storage, ample=ample, **how)


def check_bound(max_steps: int | None) -> int | None:
    """Refuse a bound that is neither `None` nor a number of steps in 32 bits."""
    if max_steps is None:
        return None
    max_steps = check_integer("max_steps", max_steps, least=0, allowed=_ALLOWED_BOUND)
    if max_steps > LARGEST_BOUND:
        raise ValueError(f"max_steps must be {_ALLOWED_BOUND}, but is {max_steps}.")
    return max_steps


_ALLOWED_BOUND = f"None or an int from 0 to {LARGEST_BOUND}, known when the loop is traced"
