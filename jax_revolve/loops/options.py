"""The options of a loop, from before its sizes are known, and a test of its storage."""

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.memories import HOST_MEMORY, default_device, has_host_memory
from jax_revolve.autodiff.loop import run_loop
from jax_revolve.progress.meters import ProgressMeter, listener_of
from jax_revolve.schedule import binomial
from jax_revolve.schedule.actions import scheduled_blocks
from jax_revolve.schedule.arguments import Memory, check_integer, parse_bytes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints, is_zero, plan
from jax_revolve.schedule.selection import MOST_REPETITIONS_BY_DEFAULT, Request, equal_blocks
from jax_revolve.schedule.storage import Disk, HostMemory, Storage, check_storage
from jax_revolve.step.equation import run_around_loop
from jax_revolve.step.loop import Loop
from jax_revolve.storage.files import check_directory

MOST_REPETITIONS_TO_A_BOUND = 3
"""Most loops stop long before their bound. So by default they get the fewest checkpoints with which
no step is advanced more often than this even at the bound: about `(6 * max_steps) ** (1 / 3)`."""

LONGEST = 2**31 - 2
"""The most steps of a scan. Positions are 32-bit integers on the device, and the end of the loop
counts as one more step."""

LARGEST_BOUND = 2**31 - 1
"""The most steps of a while loop, whose counter goes up to the bound."""


@dataclass(frozen=True)
class Options:
    """The options that all loops share. Making the object checks them, so that their errors come
    before `jax.lax`'s."""

    checkpoints: Checkpoints = None
    block_size: int | None = None
    memory: Memory = None
    storage: Storage | None = None
    plan: Plan | None = None
    progress: bool | ProgressMeter = False
    is_reversible: ClassVar[bool] = False
    """Whether the step has an inverse, so that blocks are walked back."""

    def __post_init__(self) -> None:
        self._chosen(0, is_while=False)
        block_size = getattr(self.plan, "block_size", self.block_size)
        if self.is_reversible and block_size == 1 and (self.plan is None or self.plan.length > 1):
            raise ValueError(
                "block_size must be at least 2 where an inverse is given, but is 1: nothing is "
                "walked back then. Leave the inverse out, or pass a larger block_size."
            )
        listener_of(self.progress)
        if self.plan is None:
            return
        if not isinstance(self.plan, Plan):
            raise TypeError(
                "plan must be a Plan, made with jax_revolve.plan(length, checkpoints), "
                f"or None, but is {self.plan!r} of type {type(self.plan).__name__}."
            )
        for name in ("checkpoints", "block_size", "memory", "storage"):
            value = getattr(self, name)
            if value is not None:
                raise ValueError(
                    f"{name} must be None where a plan is given, but is {value!r}: the plan "
                    "determines it."
                )

    def loop(self, equation: Loop, max_steps: int | None = None) -> Loop:
        """The loop of an equation of `jax.lax`, with a plan by these options. A loop that cannot
        have a plan stays lax's own, unless the user gave a budget."""
        is_while = equation.length is None
        length = max_steps if is_while else equation.length
        plan = self.plan_for(length, is_while=is_while)
        if equation.obstacle is not None:
            self._check_no_budget(equation.obstacle)
            return equation.with_plan(length, None)
        try_storage(plan)
        return equation.with_plan(length, plan, listener_of(self.progress))

    def _check_no_budget(self, obstacle: str) -> None:
        """Warn that the loop stays lax's own, and refuse a budget that it would exceed."""
        for name in ("checkpoints", "block_size", "memory", "storage", "plan"):
            value = getattr(self, name)
            if value is not None:
                raise NotImplementedError(
                    f"{name} must be None for this loop, but is {value!r}: its reverse pass cannot "
                    f"recompute steps, because {obstacle}. Without it, the loop runs as in "
                    "jax.lax, which stores the residuals of all steps."
                )
        warnings.warn(
            f"This loop runs as in jax.lax, without checkpoints, because {obstacle}: its reverse "
            "pass cannot recompute steps, and stores the residuals of all.",
            stacklevel=2,
        )

    def plan_for(self, length: int | None, *, is_while: bool) -> Plan | Request | None:
        """The plan, or a request for one, of a scan of `length` steps or a while loop of at most as
        many; `None` if the loop cannot be reversed."""
        if is_while:
            length = check_bound(length)
            if isinstance(self.plan, Plan) and self.plan.levels:
                raise ValueError(
                    f"plan must have no levels for a while loop, but is {self.plan}: only a loop "
                    "of known length has parts of static length. Make the plan without levels."
                )
            if length is None:
                self._check_without_bound()
                if self.checkpoints is None:
                    return None
                return self._chosen(LARGEST_BOUND, is_while=True)
        assert length is not None
        if not is_while and length > LONGEST:
            raise ValueError(
                f"length must be at most {LONGEST}, but is {length}. Nest two loops instead."
            )
        if self.plan is None:
            return self._chosen(length, is_while=is_while)
        if self.plan.length != length:
            raise ValueError(
                f"plan must be for a loop of {length} steps, but is for {self.plan.length}: "
                f"{self.plan}. Make it with plan({length}, ...)."
            )
        return self.plan

    def _check_without_bound(self) -> None:
        """Refuse options that depend on a bound."""
        if self.plan is not None:
            raise ValueError(
                f"plan must be None where max_steps is None, but is for {self.plan.length} steps: "
                f"{self.plan}. Pass max_steps={self.plan.length}, or checkpoints."
            )
        if isinstance(self.checkpoints, str):
            raise ValueError(
                "checkpoints must be an int >= 1 or None where max_steps is None, but is "
                f"{self.checkpoints!r}: their number would be unknown. Pass max_steps."
            )
        if self.memory is not None:
            raise ValueError(
                f"memory must be None where max_steps is None, but is {self.memory!r}: the "
                "best plan depends on the bound. Pass max_steps, or checkpoints."
            )
        storage = self.storage
        if storage is not None and not (
            is_zero(self.checkpoints) and (storage.checkpoints or storage.memory)
        ):
            raise ValueError(
                f"storage must be None where max_steps is None, but is {storage!r}: the number "
                "of its checkpoints would be unknown. Pass max_steps, or checkpoints=0 "
                "and HostMemory(checkpoints=...) to keep that many in the host's memory."
            )

    def _chosen(self, length: int, *, is_while: bool) -> Plan | Request:
        """The plan or request of options without a `plan`."""
        checkpoints, memory, storage = self.checkpoints, self.memory, check_storage(self.storage)
        if memory is not None and checkpoints is not None:
            raise ValueError(
                f"checkpoints must be None where memory is given, but is {checkpoints!r}: "
                f"memory={memory!r} determines their number."
            )
        k = self.block_size
        if k is not None:
            k = min(check_integer("block_size", k, least=1), max(length, 1))
        elif self.is_reversible and memory is None:
            wanted = checkpoints if isinstance(checkpoints, int) else 0
            k = equal_blocks(length, wanted or walked_blocks(length)).block_size
            checkpoints = "all" if checkpoints is None else checkpoints
        if checkpoints is None:
            most = MOST_REPETITIONS_TO_A_BOUND if is_while else MOST_REPETITIONS_BY_DEFAULT
            blocks = scheduled_blocks(length, k if k and memory is None else 1)
            checkpoints = binomial.fewest_checkpoints(blocks, most)
            if self.is_reversible and k is None:
                checkpoints = walked_blocks(length)
                if storage is not None:
                    raise ValueError(
                        f"block_size must be given where inverse, memory and storage are, but is "
                        f"None for memory={memory!r} and storage={storage!r}."
                    )
            if k is None or memory is not None:
                budget = None if memory is None else parse_bytes(memory)
                return Request(length, budget, checkpoints, k, is_while, storage)
        none = is_zero(checkpoints)
        if storage is None or (storage.memory is None and (none or storage.transfer is not None)):
            return plan(length, checkpoints, block_size=k, storage=storage)
        on_device = 0
        if not (none and isinstance(storage, HostMemory)):
            on_device = plan(length, checkpoints, block_size=k).checkpoints
        return Request(length, None, on_device, k or 1, is_while, storage, is_fixed=True)


class ReversibleOptions(Options):
    """The options of a loop whose step has an inverse."""

    is_reversible: ClassVar[bool] = True


def walked_blocks(length: int) -> int:
    """The number of blocks that are walked back by default, about `(6 * length) ** (1 / 3)`."""
    return binomial.fewest_checkpoints(max(length, 1), MOST_REPETITIONS_TO_A_BOUND)


def check_bound(max_steps: int | None) -> int | None:
    """Refuse a bound that is neither `None` nor a number of steps in 32 bits."""
    if max_steps is None:
        return None
    max_steps = check_integer("max_steps", max_steps, least=0, allowed=_ALLOWED_BOUND)
    if max_steps > LARGEST_BOUND:
        raise ValueError(f"max_steps must be {_ALLOWED_BOUND}, but is {max_steps}.")
    return max_steps


_ALLOWED_BOUND = f"None or an int from 0 to {LARGEST_BOUND}, known when the loop is traced"


def try_storage(wanted: Plan | Request | None) -> None:
    """Refuse a storage that does not exist or does not work."""
    storage = None if wanted is None else wanted.storage
    if isinstance(storage, Disk):
        check_directory(storage.directory)
    elif isinstance(storage, HostMemory):
        check_host_memory(default_device().platform)


@cache
def check_host_memory(backend: str) -> None:
    """Run a small gradient with checkpoints in the host's memory and compare it with the device's.

    XLA has silently computed wrong gradients from such buffers: on GPUs, it read entries forwards
    where the loop reads them backwards (https://github.com/openxla/xla/pull/46231). So we test each
    backend once before we use it.
    """
    if not has_host_memory():
        raise ValueError(
            f"storage must be None or a Disk on the {backend} backend, which has no memory of kind "
            f"{HOST_MEMORY!r}."
        )
    on_device, on_host = Plan(_LENGTH, 4), Plan(_LENGTH, 4, 1, HostMemory())
    on_both = Plan(_LENGTH, 3, 1, HostMemory(transfer=1.0), segments=4, segment=4)
    expected, *found = map(_gradient, (on_device, on_host, on_both))
    if not all(np.array_equal(gradient, expected) for gradient in found):
        raise RuntimeError(
            f"A gradient with checkpoints in the host's memory is wrong on the {backend} backend "
            f"of this version of JAX, {jax.__version__}, without an error. Pass storage=None, or "
            "a Disk, until a later version fixes it."
        )


_LENGTH = 24


def _gradient(plan: Plan) -> np.ndarray:
    """A gradient, compiled and run outside any trace, that depends on the state at every step. All
    its numbers are integers, so programs that are fused differently agree exactly."""
    state = np.linspace(-128, 127, 256, dtype=np.float32)
    signs = np.resize([1, -1, -1], _LENGTH).astype(np.float32)

    def step(state: jax.Array, sign: Any) -> tuple[jax.Array, None]:
        return jnp.where(state > 0, sign, 1) * jnp.roll(state, 1), None

    def run(equation: Loop, operands: list[Any]) -> Any:
        return run_loop(equation.with_plan(_LENGTH, plan), operands)

    def total(state: jax.Array) -> jax.Array:
        final = run_around_loop(lambda: lax.scan(step, state, signs), run)[0]
        return jnp.sum(final * np.arange(final.size, dtype=np.float32))

    with jax.disable_jit(False), jax.transfer_guard("allow"):
        return np.asarray(jax.jit(jax.grad(total)).lower(state).compile()(state))
