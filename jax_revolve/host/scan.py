"""`host_scan`: a scan that Python drives."""

import os
from collections.abc import Callable
from math import inf, isfinite
from numbers import Real
from typing import Any, TypeVar

from jax import lax

from jax_revolve.host.body.prepared import prepare
from jax_revolve.host.differentiable import run
from jax_revolve.host.loop import HostLoop
from jax_revolve.host.watch import Watch
from jax_revolve.loops.options import Options
from jax_revolve.progress.meters import ProgressMeter
from jax_revolve.schedule.arguments import Memory
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.storage import Disk, Storage
from jax_revolve.schedule.two_level import AnyPlan
from jax_revolve.storage.files import check_directory

Carry = TypeVar("Carry")


def host_scan(
    f: Callable[[Carry, Any], tuple[Carry, Any]],
    init: Carry,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    memory: Memory = None,
    storage: Storage | None = None,
    plan: AnyPlan | None = None,
    consume: Callable[[int, Any], None] | None = None,
    jit: bool = True,
    directory: str | os.PathLike[str] | None = None,
    save_every: float = 60.0,
    progress: bool | ProgressMeter = False,
) -> tuple[Carry, Any]:
    """`jax.lax.scan` as a loop in Python over a compiled step, whose reverse pass stores
    `checkpoints` carries and recomputes the rest. A run with a `directory` goes on where it
    stopped, bit for bit, even if its process was killed.

    For loops that do not fit into one program: steps of seconds on many devices, xs that are read
    from files while the loop runs, solvers that are not JAX, and runs of days. For all others,
    [`jax_revolve.checkpointed_scan`][] takes less time and has more transformations.

    It runs outside of `jax.jit`, under `jax.grad`, `jax.value_and_grad`, `jax.vjp` and the
    transpose of `jax.linearize`. `f` is traced and compiled once for the forward sweep and once
    for the reverse sweep. Cotangents are those of `init`, xs and everything that `f` closes over.

    A step costs some 0.1 ms more than the compiled step alone. The reverse sweep evaluates `f` as
    often as `plan(n, checkpoints, block_size=block_size)` says.

    **Arguments:**

    - `f`, `init`, `length`, `reverse`: as `jax.lax.scan`. The carry keeps the sharding of `init`,
        which may be that of several processes. They then make the same call.
    - `xs`: as `jax.lax.scan`; a NumPy array stays in the host's memory. Or a function `i -> x`. It
        is called in a thread whenever step `i` runs, one step ahead, and is not differentiated.
        `length` is then needed.
    - `checkpoints`, `block_size`, `memory`, `storage`, `plan`: as
        [`jax_revolve.checkpointed_scan`][]. `memory` needs `jit`.
    - `consume`: a function `consume(i, y)`, called in the forward sweep with each y, as NumPy
        arrays, in the order of the steps. The result then has `None` for ys.
    - `jit`: `False` calls `f` directly, for steps that are not JAX. `f` must then be differentiable
        as it is, by a `jax.custom_vjp` of its own, and must not close over values that are
        differentiated. It may be a `jax.tree_util.Partial`, whose arrays are differentiated.
    - `directory`: where to save the run, so that it can be resumed: a `str` or an `os.PathLike`,
        one for each call. It is made if it does not exist. The same call goes on from there, or
        returns the result of a run that is over.
    - `save_every`: the seconds between two saves, a number >= 0. A killed run repeats about as
        many seconds, and at most one block.
    - `progress`: as [`jax_revolve.checkpointed_scan`][].

    **Returns:**

    As `jax.lax.scan`: the final carry and the stacked ys, these as NumPy arrays in the host's
    memory.

    **Raises:**

    Whatever `jax.lax.scan` raises, what `f`, `xs` and `consume` raise, and:

    - `TypeError` or `ValueError` if an argument is not as above;
    - `NotImplementedError` inside of `jax.jit`, `jax.vmap` and loops of JAX, in forward mode, and
        if `f` has effects that cannot be repeated;
    - `ValueError` if the `directory` has another run: the error says whether the step, the inputs,
        the options or something else differs;
    - `RuntimeError` if another process uses the `directory`;
    - `OSError` if a file cannot be written, or if all states in the `directory` are damaged.
        What was saved before is left as it was.

    A `KeyboardInterrupt` waits for the current step, and saves the run.

    !!! Example

        ```python
        import tempfile

        import jax
        import jax.numpy as jnp
        from jax_revolve import host_scan

        def wind(i):  # or read from a file
            return jnp.sin(0.1 * i)

        def energy(friction, directory):
            def step(speed, force):
                return speed + 0.01 * (force - friction * speed), None

            options = {"length": 100, "checkpoints": 5, "directory": directory}
            speed, _ = host_scan(step, jnp.zeros(3), wind, **options)
            return jnp.sum(speed**2)

        with tempfile.TemporaryDirectory() as directory:
            jax.grad(energy)(0.5, directory)
        ```
    """
    _check(consume, jit, directory, save_every, memory)
    if not jit and plan is None and block_size is None:
        block_size = 1  # the size of the residuals is not known
    asked = Options(checkpoints, block_size, memory, storage, plan, progress)
    if isinstance(storage, Disk) and directory is None:
        check_directory(storage.directory)
    prepared = prepare(f, init, xs, length, reverse, jit)
    if prepared.length == 0:
        carry, ys = lax.scan(f, init, xs, length, reverse)
        return carry, ys if consume is None else None
    loop = HostLoop(
        prepared,
        bool(reverse),
        asked.for_scan(prepared.length),
        consume,
        Watch(asked.listener, inf if directory is None else save_every),
        directory,
    )
    carry, ys = run(loop, prepared.operands)
    return prepared.carry(carry), prepared.y(ys) if consume is None else None


def _check(
    consume: object, jit: object, directory: object, save_every: Any, memory: object
) -> None:
    """Checks the arguments that only this loop has."""
    is_function = consume is None or callable(consume)
    is_path = isinstance(directory, str | os.PathLike | None)
    is_number = isinstance(save_every, Real) and not isinstance(save_every, bool)
    seconds = "a number >= 0 of seconds between two saves"
    for name, value, is_allowed, allowed in (
        ("jit", jit, isinstance(jit, bool), "True or False"),
        ("consume", consume, is_function, "a function consume(i, y) or None"),
        ("directory", directory, is_path, "a str, an os.PathLike or None"),
        ("save_every", save_every, is_number, seconds),
    ):
        if not is_allowed:
            raise TypeError(
                f"{name} must be {allowed}, but is {value!r} of type {type(value).__name__}."
            )
    if not isfinite(save_every) or save_every < 0:
        raise ValueError(f"save_every must be {seconds}, but is {save_every!r}.")
    if not jit and memory is not None:
        raise ValueError(
            f"memory must be None where jit=False, but is {memory!r}: the residuals of a step that "
            "is not traced are not known. Pass checkpoints."
        )
