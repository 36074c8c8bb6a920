"""The loops to compare, what they are compared with, and when two results are the same."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve import bounded_while_loop, checkpointed_scan


def with_reverse_rule(function: Callable[[Any], Any], backward: Callable[[Any, Any], Any]) -> Any:
    """The function, whose cotangent is `backward(x, ct)`."""
    ruled = jax.custom_vjp(function)
    ruled.defvjp(lambda x: (function(x), x), lambda x, ct: (backward(x, ct),))
    return ruled


class Loops(NamedTuple):
    """A scan as `lax.scan`, and a while loop as `lax.while_loop` that also takes `max_steps`."""

    scan: Callable[..., Any]
    while_loop: Callable[..., Any]


def ours(how: dict[str, Any], checkpoints: Any = None, **scan_options: Any) -> Loops:
    """With the checkpoints of a case, unless `how` the loops are run says others."""
    how = {"checkpoints": checkpoints, **how}
    scan = partial(checkpointed_scan, **how, **scan_options)
    return Loops(scan, partial(bounded_while_loop, **how))


def scan_as_while(checkpoints: Any = None, **scan_options: Any) -> Loops:
    """The scan as a while loop, so that everything a scan is tested with tests that loop too."""
    scan = partial(_scan_as_while, checkpoints=checkpoints, **scan_options)
    return Loops(scan, partial(bounded_while_loop, checkpoints=checkpoints))


def reference(checkpoints: Any = None, **scan_options: Any) -> Loops:
    del checkpoints
    return Loops(partial(lax.scan, **scan_options), masked_while_loop)


def by_python(
    f: Any, init: Any, xs: Any = None, length: Any = None, reverse: bool = False, unroll: int = 1
) -> Any:
    """`lax.scan` as a loop in Python. Before jax 0.12 the second derivative of a scan forgets the
    rules of `custom_jvp` functions in its body."""
    del unroll
    steps = jax.tree.leaves(xs)[0].shape[0] if length is None else length
    carry, ys = init, {}
    for i in reversed(range(steps)) if reverse else range(steps):
        carry, ys[i] = f(carry, jax.tree.map(lambda x: x[i], xs))  # noqa: B023
    return carry, jax.tree.map(lambda *y: jnp.stack(y), *(ys[i] for i in range(steps)))


def masked_while_loop(
    cond_fun: Any,
    body_fun: Any,
    init: Any,
    max_steps: int,
    throw: bool = False,
    scan: Any = lax.scan,
    mixes: bool = False,
) -> Any:
    """A while loop for `max_steps` steps. Those after its end are dropped. They are computed from
    ones, where the programs here have all derivatives, unless the body `mixes` examples, so that
    others see what they compute."""

    def safe(go_on: Any, x: Any) -> Any:
        inexact = jnp.issubdtype(x.dtype, jnp.inexact)
        return jnp.where(go_on, x, 1) if inexact and not mixes else x

    def step(state: Any, _: Any) -> Any:
        go_on = cond_fun(state)
        new = body_fun(jax.tree.map(partial(safe, go_on), state))
        keep = lambda new, old: jnp.where(go_on, new, old)  # noqa: E731
        return jax.tree.map(keep, new, state), None

    # Under `shard_map` what varies over the devices then does so from the start.
    init = jax.tree.map(lambda x: jnp.where(cond_fun(init), x, x), init)
    return scan(step, init, None, max_steps)[0]


def _scan_as_while(
    f: Any,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int = 1,
    **options: Any,
) -> Any:
    del unroll
    steps = jax.tree.leaves(xs)[0].shape[0] if length is None else length

    def x_at(index: Any) -> Any:
        return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False), xs)

    def body(state: Any) -> Any:
        i, carry, ys = state
        at = steps - 1 - i if reverse else i
        carry, y = f(carry, x_at(at))
        write = lambda whole, part: lax.dynamic_update_index_in_dim(whole, part, at, 0)  # noqa: E731
        return i + 1, carry, jax.tree.map(write, ys, y)

    if steps == 0:
        return lax.scan(f, init, xs, length)
    # Made of a y, so that it has its type; all of it is overwritten.
    y = f(init, x_at(0))[1]
    ys = jax.tree.map(lambda y: jnp.broadcast_to(y, (steps, *jnp.shape(y))), y)
    state = (jnp.int32(0), init, ys)
    _, carry, ys = bounded_while_loop(
        lambda state: state[0] < steps, body, state, max_steps=steps + 2, throw=False, **options
    )
    return carry, ys


def assert_same(ours: Any, theirs: Any, rtol: float, *, weak_types: bool = True) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(ours), jax.tree.leaves(theirs), strict=True
    ):
        where = jax.tree_util.keystr(path)
        if a.dtype == jax.dtypes.float0:
            assert b.dtype == jax.dtypes.float0, where
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        assert not weak_types or jax.typeof(a) == jax.typeof(b), where
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        wide = complex if jnp.issubdtype(a.dtype, jnp.complexfloating) else float
        a, b = np.asarray(a).astype(wide), np.asarray(b).astype(wide)
        scale = np.max(np.abs(b), initial=1e-300)
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=rtol, err_msg=where)


def assert_close(ours: Any, theirs: Any, rtol: float = 1e-12, atol: float | None = None) -> None:
    """Number by number; `assert_same` looks at types too, and allows parts of the largest."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol if atol is None else atol)


def assert_like_lax(
    program: Any,
    derivative: Any,
    *arguments: Any,
    scan: Any = checkpointed_scan,
    rtol: float = 1e-10,
) -> None:
    """A derivative of `program(scan, *arguments)` is the same with ours and with `lax.scan`."""
    ours, theirs = (
        jax.jit(derivative(partial(program, each)))(*arguments) for each in (scan, lax.scan)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=rtol / 100), ours, theirs)
