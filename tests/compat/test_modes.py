"""Loops in JAX's strict modes and with its next implementations, and the primitives by whose names
the library tells equations.

The other tests run with the next implementation of `jax.checkpoint`, too, where JAX has it:
`JAX_REMAT3=1 pytest tests/parity tests/autodiff/test_derivatives.py`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.calls import equations, option

from jax_revolve import (
    Disk,
    HostMemory,
    bounded_while_loop,
    checkpointed_fori_loop,
    checkpointed_scan,
)
from jax_revolve.typing import ProgressMeter

# Where JAX promotes neither dtypes nor ranks

LENGTH = 9


def advanced(y: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sin(y * x) + jnp.roll(y, 1)


def scanned(x: jax.Array, **options: Any) -> Any:
    xs = x[0] * jnp.arange(1, LENGTH + 1, dtype=jnp.float32)
    step = lambda y, s: (advanced(y, x) * s, jnp.sum(y))  # noqa: E731
    return checkpointed_scan(step, x, xs, **options)


def stopped(x: jax.Array, **options: Any) -> Any:
    """The number of steps depends on the example."""
    go_on = lambda state: state[0] < jnp.where(state[1][0] > 1, 1, LENGTH)  # noqa: E731
    body = lambda state: (state[0] + 1, advanced(state[1], x))  # noqa: E731
    return bounded_while_loop(go_on, body, (0, x), **options)


def repeated(x: jax.Array, **options: Any) -> Any:
    upper = jnp.where(x[0] > 1, 1, LENGTH)
    return checkpointed_fori_loop(0, upper, lambda _, y: advanced(y, x), x, **options)


BAR = ProgressMeter()
IN_BLOCKS = {"checkpoints": 3, "block_size": 2, "progress": BAR}
CASES: list[tuple[Any, dict[str, Any]]] = [
    (scanned, IN_BLOCKS),
    (scanned, {"memory": 4000}),
    (scanned, {"checkpoints": 2, "storage": HostMemory(), "progress": BAR}),
    (scanned, {"checkpoints": 2, "block_size": 2, "storage": Disk(".")}),
    (stopped, {"max_steps": 20, **IN_BLOCKS}),
    (stopped, {"max_steps": 20, "memory": 4000}),
    (stopped, {"max_steps": None, "checkpoints": 3, "progress": BAR}),
    (stopped, {"max_steps": 20, "checkpoints": 1, "with_steps": True, "throw": True}),
    (repeated, {"max_steps": None, "checkpoints": 3}),
    (repeated, {"max_steps": 20}),
]


@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize(("loop", "options"), CASES)
def test_nothing_is_promoted(loop: Any, options: dict[str, Any]) -> None:
    """Whatever is traced and lowered of derivatives, of a batch too: nothing needs to be run."""

    def f(x: jax.Array) -> jax.Array:
        leaves = jax.tree.leaves(loop(x, **options))
        return sum((jnp.sum(x.astype(jnp.float32)) for x in leaves), jnp.float32(0))

    def derivatives(x: jax.Array) -> Any:
        found = [jax.value_and_grad(f)(x), jax.jvp(f, (x,), (x,))]
        found.append(jax.vmap(jax.grad(f))(jnp.stack([x, -x])))
        return [*found, jax.jvp(jax.grad(f), (x,), (x,))]

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.jit(derivatives).lower(np.linspace(0.1, 0.9, 3, dtype=np.float32))


# The next JAX

X = jnp.linspace(0.1, 1.0, 3)


def advance(carry: Any, x: Any) -> tuple[Any, Any]:
    return jnp.sin(carry) + x, carry


@pytest.mark.unchecked
def test_a_loop_that_is_traced_in_an_unknown_way_is_an_error() -> None:
    body: Any = lambda c: c * 1.5  # noqa: E731
    goes_on: Any = lambda c: c < 2  # noqa: E731
    with option("jax_scan3"):
        with pytest.raises(NotImplementedError, match="jax_scan3=True"):
            jax.grad(lambda c: checkpointed_scan(advance, c, X)[0])(0.5)
        with pytest.raises(NotImplementedError, match="jax_scan3=True"):
            checkpointed_fori_loop(0, 3, lambda i, c: jnp.sin(c), 1.0)
        assert jax.grad(partial(bounded_while_loop, goes_on, body, max_steps=5))(1.0) == 2.25


def test_scans_of_the_next_jax_have_no_reverse_mode_and_lose_writes() -> None:
    """Fails on the day that JAX mends either: then read such scans instead of refusing them."""

    def doubled(x: Any) -> Any:
        total = jax.new_ref(x)

        def step(c: Any, _: Any) -> Any:
            total[...] *= 2
            return c, None

        lax.scan(step, 0.0, None, length=3)
        return total[...]

    with option("jax_scan3"):
        with pytest.raises(NotImplementedError, match="for grad support"):
            jax.grad(lambda c: lax.scan(advance, c, X)[0])(0.5)
        assert doubled(1.0) == 8
        assert jax.jit(doubled)(1.0) == (1 if jax.__version_info__ >= (0, 12) else 8)


def test_the_next_jax_checkpoint() -> None:
    def loss(scan: Any, x: Any) -> Any:
        inner = jax.checkpoint(lambda c: scan(advance, c, X)[0])
        return jnp.sum(scan(lambda c, x: (inner(c) * x, None), x, X)[0] ** 2)

    with option("jax_remat3"):
        for derivative in (jax.grad, jax.hessian):
            ours, theirs = (derivative(partial(loss, s))(X) for s in (checkpointed_scan, lax.scan))
            np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_split_transpose_is_accepted_and_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = lax.scan

    def scan(f: Any, init: Any, xs: Any, length: Any, reverse: bool, unroll: int) -> Any:
        return theirs(f, init, xs, length, reverse, unroll)

    monkeypatch.setattr(lax, "scan", scan)
    run = partial(checkpointed_scan, advance, xs=X, _split_transpose=True)
    _, ys = run(0.0)
    assert ys.shape == (3,)
    np.testing.assert_allclose(jax.grad(lambda c: run(c)[0])(0.0), np.prod(np.cos(ys)), rtol=1e-6)


def test_unroll_0_with_progress() -> None:
    """It unrolls all of the loop, and once divided by zero."""
    scan = partial(checkpointed_scan, advance, 0.0, X, unroll=0)
    np.testing.assert_allclose(scan(progress=BAR)[0], scan()[0], rtol=1e-6)


def test_the_names_of_primitives_exist() -> None:
    """Costs, cuts and rewriting tell equations by their primitives' names."""
    forward = jax.custom_jvp(lambda x: x)
    forward.defjvp(lambda x, t: (x[0], t[0]))
    reverse = jax.custom_vjp(lambda x: x)
    reverse.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P()
    programs: dict[str, Any] = {
        "jit": jax.jit(jnp.sin),
        "remat2": jax.checkpoint(jnp.sin),
        "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
        "shard_map": jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec),
        "scan": lambda x: lax.scan(advance, 0.0, x),
        "while": lambda x: lax.while_loop(lambda c: c[0] < 1, lambda c: c + 1, x),
        "custom_jvp_call": forward,
        "custom_vjp_call": reverse,
        "dot_general": lambda x: x @ x,
        "conv_general_dilated": lambda x: lax.conv(x[None, None], x[None, None], (1,), "SAME"),
        "broadcast_in_dim": lambda x: lax.broadcast(x, (2,)),
        "dynamic_slice": lambda x: lax.dynamic_slice(x, (x[0].astype(int),), (1,)),
        "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, x, (x[0].astype(int),)),
        "gather": lambda x: x[x.astype(int)],
        "scatter": lambda x: x.at[x.astype(int)].set(x),
        "scatter-add": lambda x: x.at[x.astype(int)].add(x),
        "sharding_constraint": lambda x: lax.with_sharding_constraint(
            x, jax.NamedSharding(mesh, spec)
        ),
    }
    for name, fun in programs.items():
        traced = jax.make_jaxpr(fun)(X)
        assert name in {eqn.primitive.name for eqn in equations(traced)}, (name, traced)
