"""A test of whether a storage works."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.loops import LoopEquation, run_around_loop
from jax_revolve._compat.memories import HOST_MEMORY, default_device, has_host_memory
from jax_revolve.autodiff.rules import run_loop
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.selection import Request
from jax_revolve.schedule.storage import Disk, HostMemory
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan
from jax_revolve.step.loop import Loop
from jax_revolve.storage.files import check_directory


def try_storage(wanted: AnyPlan | Request | None) -> None:
    """Refuse a storage that does not exist, or that does not work."""
    storage = None if wanted is None else wanted.storage
    if isinstance(storage, Disk):
        check_directory(storage.directory)
    elif isinstance(storage, HostMemory):
        check_host_memory(default_device().platform)


@cache
def check_host_memory(backend: str) -> None:
    """Run a small gradient with checkpoints in the host's memory and compare it with the device's.

    XLA has computed wrong gradients from the buffers of loops in the host's memory, without an
    error: on GPUs, it read entries forwards where the loop reads them backwards
    (https://github.com/openxla/xla/pull/46231). So each backend is tested once before it is used.
    """
    if not has_host_memory():
        raise ValueError(
            f"storage must be None or a Disk on the {backend} backend, which has no memory of kind "
            f"{HOST_MEMORY!r}."
        )
    on_device, two_levels = Plan(_LENGTH, 4), TwoLevelPlan(_LENGTH, 3, 1, HostMemory(transfer=1.0))
    expected = _gradient(on_device)
    for plan in (Plan(_LENGTH, 4, 1, HostMemory()), two_levels):
        if not np.array_equal(_gradient(plan), expected):
            raise RuntimeError(
                "A gradient with checkpoints in the host's memory is wrong on the "
                f"{backend} backend of this version of JAX, {jax.__version__}, without an "
                "error. Pass storage=None, or a Disk, until a later version fixes it."
            )


_LENGTH = 24


def _gradient(plan: AnyPlan) -> np.ndarray:
    """A gradient, compiled and run outside any trace. It depends on the state at every step. All of
    its numbers are integers, so programs that are fused differently have no rounding errors."""
    state = np.linspace(-128, 127, 256, dtype=np.float32)

    def total(state: jax.Array) -> jax.Array:
        def step(state: jax.Array, sign: jax.Array) -> tuple[jax.Array, None]:
            return jnp.where(state > 0, sign, 1) * jnp.roll(state, 1), None

        def run(equation: LoopEquation, operands: list[Any]) -> Any:
            return run_loop(Loop.of(equation, _LENGTH, plan), operands)

        signs = jnp.where(jnp.arange(_LENGTH) % 3 == 0, jnp.float32(1), jnp.float32(-1))
        final = run_around_loop(lambda: lax.scan(step, state, signs), run)[0]
        return jnp.sum(final * np.arange(final.size, dtype=np.float32))

    with jax.disable_jit(False), jax.transfer_guard("allow"):
        compiled = jax.jit(jax.grad(total)).lower(state).compile()
        return np.asarray(compiled(state))
