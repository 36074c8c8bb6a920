"""The options of a loop, from before its sizes are known, and a test of its storage."""

import warnings
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.memories import HOST_MEMORY, default_device, has_host_memory
from jax_revolve.autodiff.loop import run_loop
from jax_revolve.progress.meters import Listener, ProgressMeter, listener_of
from jax_revolve.schedule.options import Options
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import Disk, HostMemory, check_storage
from jax_revolve.step.cpu import with_windows_apart
from jax_revolve.step.equation import run_around_loop
from jax_revolve.step.loop import Loop
from jax_revolve.storage.files import folder_in


@dataclass(frozen=True)
class LoopOptions(Options):
    """The options that all loops share."""

    progress: bool | ProgressMeter = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.listener

    @property
    def listener(self) -> Listener | None:
        return listener_of(self.progress)

    @property
    def arguments(self) -> dict[str, Any]:
        """As a loop takes them."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.kw_only}

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
        return with_windows_apart(equation.with_plan(length, plan))

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


def try_storage(wanted: Plan | Options | None) -> None:
    """Refuse a storage that does not exist or does not work."""
    storage = None if wanted is None else check_storage(wanted.storage)
    if isinstance(storage, Disk):
        folder_in(storage.directory)
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
