"""The JAX that comes next, and the names in the installed one on which this library relies.

The other tests run with the next implementation of `jax.checkpoint`, too, where JAX has it:
`JAX_REMAT3=1 pytest tests/parity tests/test_derivatives.py`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_revolve import bounded_while_loop, checkpointed_fori_loop, checkpointed_scan

X = jnp.linspace(0.1, 1.0, 3)


def equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program, those inside others included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves([*eqn.params.values()], is_leaf=lambda x: hasattr(x, "eqns")):
            yield from equations(inner) if hasattr(inner, "eqns") else ()


def advance(carry: Any, x: Any) -> tuple[Any, Any]:
    return jnp.sin(carry) + x, carry


@pytest.fixture
def flag(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param not in jax.config.values:
        pytest.skip("JAX does not have it")
    jax.config.update(request.param, True)
    yield
    jax.config.update(request.param, False)


@pytest.mark.usefixtures("flag")
@pytest.mark.parametrize("flag", ["jax_scan3"], indirect=True)
def test_a_loop_that_is_traced_in_an_unknown_way_is_an_error() -> None:
    for loop in (
        lambda: checkpointed_scan(advance, 0.0, X),
        lambda: checkpointed_fori_loop(0, 3, lambda i, c: jnp.sin(c), 1.0),
    ):
        with pytest.raises(NotImplementedError, match="jax_scan3=True"):
            loop()
    body: Any = lambda c: c * 1.5  # noqa: E731
    goes_on: Any = lambda c: c < 2  # noqa: E731
    assert jax.grad(partial(bounded_while_loop, goes_on, body, max_steps=5))(1.0) == 2.25


@pytest.mark.usefixtures("flag")
@pytest.mark.parametrize("flag", ["jax_remat3"], indirect=True)
def test_the_next_jax_checkpoint() -> None:
    def loss(scan: Any, x: Any) -> Any:
        inner = jax.checkpoint(lambda c: scan(advance, c, X)[0])
        return jnp.sum(scan(lambda c, x: (inner(c) * x, None), x, X)[0] ** 2)

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
    try:
        lax.scan(advance, 0.0, X, unroll=0)
    except ValueError:
        pytest.skip("lax.scan of this JAX does not have it")
    scan = partial(checkpointed_scan, advance, 0.0, X, unroll=0)
    np.testing.assert_allclose(scan(progress=True)[0], scan()[0], rtol=1e-6)


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
