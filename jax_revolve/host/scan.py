"""`host_scan`: a scan that Python drives."""

import os
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax import lax

from jax_revolve.host.arrays import is_function
from jax_revolve.host.identity import needs_version
from jax_revolve.host.problem import trace
from jax_revolve.host.run import run
from jax_revolve.loops.options import LoopOptions
from jax_revolve.progress.meters import ProgressMeter, listener_of
from jax_revolve.schedule.arguments import Memory, check_number, mistyped
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.storage import Disk, Storage, check_storage
from jax_revolve.storage.files import folder_in

Carry = TypeVar("Carry")
Y = TypeVar("Y")


def host_scan(
    f: Callable[[Carry, Any], tuple[Carry, Y]],
    init: Carry,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    storage: Storage | None = None,
    plan: Plan | None = None,
    consume: Callable[[int, Any], None] | None = None,
    directory: str | os.PathLike[str] | None = None,
    save_every: float = 60.0,
    version: str | int | None = None,
    progress: bool | ProgressMeter = False,
) -> tuple[Carry, Y]:
    """`jax.lax.scan` as a loop in Python over a compiled step, whose reverse pass stores
    `checkpoints` carries and recomputes the rest. A run with a `directory` goes on where it
    stopped, bit for bit, even if its process was killed.

    For loops that do not fit into one program: steps of seconds on many devices, xs that are read
    from files while the loop runs, and runs of days. For all others,
    [`jax_revolve.checkpointed_scan`][] takes less time and has more transformations.

    It runs outside `jax.jit`, under `jax.grad`, `jax.value_and_grad`, `jax.vjp` and the transpose
    of `jax.linearize`. `f` is traced and compiled once for the forward sweep and once for the
    reverse sweep. `init`, xs and everything that `f` closes over have cotangents.

    An evaluation of `f` costs less than 0.1 ms more than the compiled step alone. The reverse sweep
    evaluates `f` as often as `plan(n, checkpoints)` says.

    **Arguments:**

    - `f`, `init`, `length`, `reverse`: as `jax.lax.scan`. The carry keeps the sharding of `init`,
        which may span several processes. They then make the same call.
    - `xs`: as `jax.lax.scan`; a NumPy array stays in the host's memory, and must not change before
        the last pullback. Or a function `i -> x`, which is called whenever step `i` runs, one step
        ahead, while the device computes. It may fill and return one NumPy array each time. It is
        not differentiated. `length` is then needed.
    - `memory`, `checkpoints`, `storage`, `plan`: as [`jax_revolve.checkpointed_scan`][]. Blocks
        have a single step.
    - `consume`: a function `consume(i, y)`, called in the forward sweep with each y, as NumPy
        arrays, in the order of the steps. The result then has `None` for ys.
    - `directory`: where to save the run, so that it can be resumed: a `str` or an `os.PathLike`,
        one for each call. It is made, with its parents, if it does not exist. The same call resumes
        from there, or returns the result of a run that is over; the logger "jax_revolve" says which
        steps are skipped. A `storage=Disk(...)` must name the same directory.
    - `save_every`: the seconds between two saves, a number >= 0. A killed run loses about that much
        work.
    - `version`: a `str` or an `int` that stands for the Python code that the run calls. Change it
        whenever that code, or the data that it reads, changes. A run with a `directory` needs it if
        `xs` is a function, or if `f` calls one, for example by `jax.pure_callback`.
    - `progress`: as [`jax_revolve.checkpointed_scan`][].

    **Returns:**

    As `jax.lax.scan`: the final carry and the stacked ys, these as NumPy arrays in the host's
    memory.

    **Raises:**

    Whatever `jax.lax.scan` raises, what `f`, `xs` and `consume` raise, and:

    - `TypeError` or `ValueError` if an argument is not as above, such as a missing `version`;
    - `NotImplementedError` inside `jax.jit`, `jax.vmap` and loops of JAX, in forward mode, and if
        `f` has effects that cannot be repeated;
    - `ValueError` if the `directory` has another run: the error says whether the step, the inputs
        or something else differs, and names an option that does, with both values;
    - `RuntimeError` if another process or another call uses the `directory`;
    - `OSError` if a file cannot be written, or if all states in the `directory` are damaged.
        Earlier saves stay intact.

    With a `directory`, a `KeyboardInterrupt` waits for the current step, and saves the run.

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

            options = {"checkpoints": 5, "directory": directory, "version": "wind-1"}
            speed, _ = host_scan(step, jnp.zeros(3), wind, 100, **options)
            return jnp.sum(speed**2)

        with tempfile.TemporaryDirectory() as directory:
            jax.grad(energy)(0.5, directory)
        ```
    """
    options = LoopOptions(checkpoints, 1 if plan is None else None, memory, storage, plan, progress)
    _check(consume, directory, save_every, version, options)
    if directory is not None and version is None and is_function(xs):
        raise needs_version("xs is a function")
    call = trace(f, init, xs, length, reverse)
    no_ys: Any = None  # typed as ys, which everybody else reads
    if call.length == 0:
        carry, ys = lax.scan(f, init, xs, length, reverse)
        return carry, ys if consume is None else no_ys
    asked: dict[str, Any] = {"checkpoints": checkpoints, "memory": memory, "storage": storage}
    asked |= {"plan": plan, "length": call.length, "reverse": reverse, "version": version}
    call = call._replace(
        requested=options.plan_for(call.length, is_while=False),
        consume=consume,
        listener=listener_of(progress),
        directory=None if directory is None else Path(directory).absolute(),
        save_every=inf if directory is None else save_every,
        asked={**asked, "consume": consume is not None},
    )
    carry, ys = run(call)
    carry = jax.tree.unflatten(call.carry_tree, carry)
    return carry, jax.tree.unflatten(call.y_tree, ys) if consume is None else no_ys


def _check(
    consume: object, directory: Any, save_every: Any, version: object, options: LoopOptions
) -> None:
    """Check the arguments that only this loop has, and refuse blocks and a second directory."""
    if not (consume is None or callable(consume)):
        raise mistyped("consume", consume, "a function consume(i, y) or None")
    if not isinstance(directory, str | os.PathLike | None):
        raise mistyped("directory", directory, "a str, an os.PathLike or None")
    seconds = "a number >= 0 of seconds between two saves"
    check_number("save_every", save_every, least=0, allowed=seconds)
    if isinstance(version, bool) or not isinstance(version, str | int | None):
        raise mistyped("version", version, "a str, an int or None")
    plan = options.plan
    if options.codec is not None:
        raise NotImplementedError(
            f"storage must not be Compressed for host_scan, but is in {options.codec}: it stores "
            "what its steps return. Pass its storage alone."
        )
    storage = check_storage(options.storage) if plan is None else plan.storage
    if plan is not None and plan.block_size != 1:
        raise ValueError(
            f"plan must have blocks of a single step, but is for blocks of {plan.block_size}: "
            f"{plan}. Make it with block_size=1, and more checkpoints."
        )
    if not isinstance(storage, Disk):
        return
    if directory is None:
        folder_in(storage.directory)
    elif Path(directory).resolve() != Path(storage.directory).resolve():
        raise ValueError(
            f"storage must be Disk({os.fspath(directory)!r}) where that is the directory of the "
            f"run, but is {storage!r}: the checkpoints are a part of the run. Pass one directory."
        )
