"""`checkpointed_scan`: `lax.scan` whose reverse pass follows the optimal schedule."""

from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeVar

from jax import lax

from jax_revolve._compat.interpreters import filtered_traceback, is_traced_now
from jax_revolve._compat.values import is_jit_disabled, is_traced
from jax_revolve.autodiff.loop import run_loop
from jax_revolve.loops.inverse import Inverse, Reversible
from jax_revolve.loops.options import LoopOptions
from jax_revolve.progress.meters import ProgressMeter
from jax_revolve.schedule.arguments import Memory, mistyped
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.schedule.storage import Storage
from jax_revolve.step.equation import run_around_loop
from jax_revolve.step.loop import Loop

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")


@filtered_traceback
def checkpointed_scan(
    f: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X | None = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    block_size: int | None = None,
    storage: Storage | None = None,
    plan: Plan | None = None,
    progress: bool | ProgressMeter = False,
    inverse: Callable[[Carry, X, Y], Carry] | Inverse | None = None,
) -> tuple[Carry, Y]:
    """`jax.lax.scan` whose reverse pass stores `checkpoints` carries and recomputes the rest, with
    as few evaluations of `f` as any schedule that stores carries.

    It behaves like `lax.scan`: results, dtypes, weak types, errors, and every transformation, in
    any order and nesting. Only the memory and the time of reverse-mode derivatives differ.

    - Without differentiation, it runs as `lax.scan`.
    - First-order reverse mode (`jax.grad`, `jax.vjp`, `jax.linearize`) holds `checkpoints` carries
        and the residuals of `block_size` steps, and evaluates `f`
        `plan(n, checkpoints, block_size=block_size).evaluations` times. Cotangents of large weights
        are added up once for each block, by one matrix product.
    - Forward mode is `lax.scan`'s; reverse mode over it is first-order reverse mode of the
        loop that also carries tangents.
    - Derivatives of reverse-mode derivatives, of any order, follow the same schedule, with tangents
        beside each carry. If `f` calls a function with a `jax.custom_vjp`, or a `jax.custom_jvp`
        rule that is not JAX's own, or if its derivative has no reverse mode, they run nested scans
        under `jax.checkpoint` instead, and hold about as many carries as the square root of the
        length.

    A checkpoint holds only the leaves of the carry that are needed to recompute steps: no running
    sums, and no arrays that `f` writes into but does not read.

    Mutable references (`jax.new_ref`) that `f` reads and writes are parts of the carry, or of xs
    and ys, and are written back once. Like `jax.checkpoint`, it runs `f` again to differentiate it:
    effects in `f`, such as `jax.debug.print`, then happen again. Under `jax.disable_jit` it is
    `lax.scan` and stores all.

    **Arguments:**

    - `f`, `init`, `xs`, `length`, `reverse`, `unroll`: as `jax.lax.scan`. `unroll` applies where
        all steps run in order, as in an evaluation.
    - `memory`: the most bytes to hold: an int or a string such as `"512MB"` or `"2GiB"`. Covers
        checkpoints, residuals, and the carry that the loop runs on. The budget excludes what every
        gradient needs: xs, ys and their cotangents, cotangents of closed-over values, and the
        temporaries of a single step. Under `jax.vmap` of a gradient it is for one example; in a
        gradient of `jax.vmap` it is for all of them together. It is for one device inside
        `jax.shard_map`, and where types carry the sharding (`AxisType.Explicit`); elsewhere it
        counts whole arrays, sharded or not. The library chooses the plan with the smallest
        predicted time; `jax_revolve.explain` shows the choices. Each further order of
        differentiation takes as much again, except `jax.grad` of `jax.jvp`.
    - `checkpoints`: instead of `memory`, the number of carries to store at once, the initial one
        included: an int >= 1. `"all"` stores one for each block. More take more memory and less
        time; `jax_revolve.plan` shows how much less.
    - `block_size`: the most steps to tape together, an int >= 1: their residuals are kept at
        the same time, and checkpoints are between blocks. Longer blocks take more memory and fewer
        evaluations. With `checkpoints` alone, the default is 1.
    - `storage`: where further checkpoints are stored: a [`jax_revolve.HostMemory`][], which can
        limit the `memory` that they take there, or a [`jax_revolve.Disk`][]. `checkpoints` and
        `memory` then count the device alone. With `checkpoints=0`, a `HostMemory` holds all
        checkpoints. A [`jax_revolve.Compressed`][] stores all in fewer bits, there and on the
        device. `None`, the default, stores them as they are, on the device.
    - `plan`: instead of all of these, a plan made by `jax_revolve.plan` for a loop of this length.
    - `progress`: `True` shows a bar of tqdm for each sweep over the loop, forward and reverse. A
        [`jax_revolve.typing.ProgressMeter`][] shows progress in another way. Recomputed steps show
        nothing. A bar counts steps, not examples or devices: `jax.vmap` and `jax.shard_map` show
        one bar. It has at most about a hundred updates, and fewer if steps are quick.
        `jax.effects_barrier()` waits for the last update.
    - `inverse`: `inverse(carry, x, y)` returns the carry before a step, from the carry after it,
        the step's x and its y. Reverse mode then walks back by one inverse a step, and tapes
        nothing. After each `block_size` steps it goes on from an exact carry, of which
        `checkpoints` are stored and the others recomputed; the initial one counts. So
        `checkpoints=1` alone holds the final carry only. By default there are about
        `(6 * length) ** (1 / 3)` blocks, and all their carries are stored. `memory` limits how
        many there are, or how many are stored if `block_size` is given. What `f` loses, it can
        return in y, where `inverse` reads it; those ys are stored. Derivatives of any order work,
        and use the derivative of `inverse`. Where the walk is off at an exact carry, cotangents are
        NaN; an [`jax_revolve.Inverse`][] says from where on, and may make it an error.

    By default, checkpoints and block size are chosen as for `memory`, with a budget of about
    `sqrt(2 * length)` carries and the residuals of one step, with which no step is advanced more
    than twice. A plan that advances no step more than once may take `2 * sqrt(length)` carries, as
    much as two nested scans: it is faster, and its program is smaller.

    **Returns:**

    As `jax.lax.scan`: the final carry and the stacked ys.

    **Raises:**

    Whatever `jax.lax.scan` raises, and:

    - `TypeError` or `ValueError` if `checkpoints`, `block_size`, `memory` or `plan` is not as
        above, or excludes another one that is given;
    - `ValueError` in reverse mode if `memory` is less than the least possible, which the error
        states;
    - `OSError` if the directory of a `Disk` cannot be made; at run time, as a `JaxRuntimeError`, an
        `OSError` that names the file that could not be written or read;
    - `RuntimeError` if gradients with checkpoints in the host's memory are wrong on this backend,
        which is tested once;
    - `TypeError` if `inverse` does not return a carry of the types of `init`; `ValueError` if the
        carry has half precision and `inverse` has no `drift_tol`, or if `block_size` is 1 with an
        `inverse`; `NotImplementedError` if `f` then uses mutable references, under interpreters
        such as `checkify`, and where a gradient is differentiated that would run nested scans;
    - `ValueError` if the loop has more than `2**31 - 2` steps: steps are counted in 32 bits, and
        the schedule counts the end of the loop as one more;
    - `NotImplementedError` if a budget is given for a loop that cannot recompute steps: one with
        values that are not arrays, or with a function in it that has a derivative rule of its own
        and uses mutable references. Without a budget, such a loop runs as `lax.scan`, with a
        warning.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve import checkpointed_scan

        def energy(angle):
            def step(state, _):
                angle, speed = state
                speed = speed - 0.01 * jnp.sin(angle)
                return (angle + 0.01 * speed, speed), None

            start = (angle, jnp.zeros_like(angle))
            (angle, speed), _ = checkpointed_scan(step, start, length=1000, checkpoints=10)
            return 0.5 * speed**2 - jnp.cos(angle)

        jax.grad(energy)(1.0)
        ```

    ??? cite "Source"

        A. Griewank and A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000.
    """
    del _split_transpose  # an option of lax.scan's transposition, which never runs here
    # lax would only check it where all steps run in order; of a traced one, the error is lax's.
    if not isinstance(unroll, Integral) and not is_traced(unroll):
        raise mistyped("unroll", unroll, "a bool or an int >= 0")
    given = checkpoints, block_size, memory, storage, plan, progress
    options = LoopOptions(*given, is_reversible=inverse is not None)
    both = Reversible.of(f, inverse)

    def scan() -> tuple[Carry, Y]:
        if both is None or is_jit_disabled():
            return lax.scan(f, init, xs, length, reverse, unroll)
        carry, (ys, _) = lax.scan(both.step, init, xs, length, reverse, unroll)
        return carry, ys

    def run(equation: Loop, operands: list[Any]) -> Any:
        if both is None:
            return run_loop(options.loop(equation), operands, options.listener)
        return both.run(options, init, equation, operands)

    # Where nothing can be differentiated, run lax.scan, which reuses what it compiled before. With
    # jit disabled, it is a Python loop, for debugging.
    is_plain = options == LoopOptions() and both is None
    if is_jit_disabled() or (is_plain and not is_traced_now()):
        return scan()
    return run_around_loop(scan, run)
