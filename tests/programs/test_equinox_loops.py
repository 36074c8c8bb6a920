"""Equinox's checkpointed loops, entered by `checkpoint_loops`: beside Equinox's own gradient, and
beside plain Python where Equinox has none."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.compiled import temporaries

from jax_revolve import checkpoint_loops, explain

pytestmark = pytest.mark.usefixtures("compile_quickly")

close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)

X = np.linspace(0.5, 1.5, 3)


def going(state: Any) -> Any:
    return (jnp.sum(state[0]) < 9.0) & (state[1] < 10)


def far(state: Any) -> Any:
    jax.debug.callback(lambda: None)  # an equation without a result
    return jnp.sum(state[0]) < 9.0


def body(factor: Any, state: Any) -> Any:
    x, i, record = state
    x = 0.5 * jnp.sin(x) + x * factor
    return x, i + 1, record.at[i].set(jnp.sum(x))


def run(
    x: Any, factor: Any, *, buffers: bool = False, condition: Any = going, **options: Any
) -> Any:
    """What a loop computes, with and without a record that is a buffer."""
    of = (lambda state: state[2]) if buffers else None
    given = {"kind": "checkpointed", "max_steps": 12, "buffers": of, **options}
    final = eqxi.while_loop(condition, partial(body, factor), (x, 0, jnp.zeros(12)), **given)
    return jnp.sum(final[0] ** 2) + jnp.sum(jnp.cos(final[2]))


def python(x: Any, factor: Any) -> Any:
    state = (x, 0, jnp.zeros(12))
    while going(state) and state[1] < 12:
        state = body(factor, state)
    return jnp.sum(state[0] ** 2) + jnp.sum(jnp.cos(state[2]))


def nested(x: Any, factor: Any) -> Any:
    def outer(state: Any) -> Any:
        x, i = state
        inner = (lambda s: s[1] < 3), (lambda s: (jnp.sin(s[0]) * factor, s[1] + 1))
        x = eqxi.while_loop(*inner, (x, 0), kind="checkpointed", max_steps=4)[0]
        return lax.scan(lambda x, _: (jnp.cos(x) * factor, None), x, length=20)[0], i + 1

    whole = (lambda s: s[1] < 5), outer, (x, 0)
    return jnp.sum(eqxi.while_loop(*whole, kind="checkpointed", max_steps=8)[0])


def scanned(x: Any, factor: Any) -> Any:
    step = lambda x, y: (jnp.sin(x) * factor + y, x[0])  # noqa: E731
    final, ys = eqxi.scan(step, x, jnp.arange(10.0), kind="checkpointed")
    return jnp.sum(final) + jnp.sum(ys**2)


def jitted_writes(x: Any, factor: Any) -> Any:
    """A buffer that is written inside `jax.jit` and one branch of `cond`."""

    @jax.jit
    def write(record: Any, i: Any, y: Any) -> Any:
        return lax.cond(i % 2 == 0, lambda r: r.at[i].set(y), lambda r: r, record)

    def step(state: Any) -> Any:
        x, i, record = state
        return jnp.sin(x) * factor, i + 1, write(record, i, x[0])

    def in_the_end(state: Any) -> Any:
        return state[1] < 7

    options: Any = {"kind": "checkpointed", "max_steps": 9, "buffers": lambda s: s[2]}
    final = eqxi.while_loop(in_the_end, step, (x, 0, jnp.zeros(9)), **options)
    return jnp.sum(final[0]) + jnp.sum(final[2] ** 2)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "while": run,
    "truncated": partial(run, max_steps=2),
    "buffers": partial(run, buffers=True),
    "no bound": partial(run, buffers=True, max_steps=None, checkpoints=3, condition=far),
    "bounded": partial(run, buffers=True, kind="bounded", base=4),
    "scan": scanned,
    "nested": nested,
    "writes in calls": jitted_writes,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gradient_is_equinoxs(name: str) -> None:
    """Without options where the loop has a bound; alone, and with `jax.vmap` inside and outside."""
    fun = PROGRAMS[name]
    entered = partial(checkpoint_loops, checkpoints=3) if name == "no bound" else checkpoint_loops
    batch = np.stack([X, 3 * X, X / 2])
    mapped = jax.vmap(fun, in_axes=(0, None))
    total = lambda fun: lambda x, factor: jnp.sum(fun(x, factor))  # noqa: E731
    wanted = jax.jit(jax.value_and_grad(total(mapped), argnums=(0, 1)))(batch, 1.1)
    inside = jax.value_and_grad(entered(total(mapped)), argnums=(0, 1))(batch, 1.1)
    outside = jax.vmap(entered(fun), in_axes=(0, None))
    jax.tree.map(close, inside, wanted)
    jax.tree.map(close, jax.value_and_grad(total(outside), argnums=(0, 1))(batch, 1.1), wanted)
    assert not explain(entered(fun))(X, 1.1).not_entered


def test_forward_mode_and_higher_orders() -> None:
    """Equinox's loop has no forward mode."""
    entered = checkpoint_loops(partial(run, buffers=True))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(run, (X, 1.1), (X, 1.0))
    tangents = (X, 1.0)
    jax.tree.map(close, jax.jvp(entered, (X, 1.1), tangents), jax.jvp(python, (X, 1.1), tangents))
    close(jax.hessian(entered)(X, 1.1), jax.hessian(python)(X, 1.1), rtol=1e-7)


@pytest.mark.parametrize("how", ["written twice", "read before", "an initial value overwritten"])
def test_buffers_need_no_promise(how: str) -> None:
    """What Equinox's gradient assumes of a buffer, ours does not: there it is silently wrong."""

    def step(state: Any) -> Any:
        x, i, record = state
        at = i // 2 if how == "written twice" else i
        read = record[at] if how == "read before" else 0.0
        return jnp.sin(x) + read, i + 1, record.at[at].set(x * x)

    def fun(start: Any, kind: str) -> Any:
        options: Any = {"kind": kind, "buffers": (lambda s: s[2]) if kind != "lax" else None}
        state = (start[0], 0, start[1:])
        final = eqxi.while_loop(lambda s: s[1] < 5, step, state, max_steps=6, **options)
        return final[0] + jnp.sum(final[2] ** 2 * jnp.arange(1.0, 6.0))

    start = np.linspace(0.3, 1.0, 6)
    wanted = jax.jacfwd(fun)(start, "lax")
    close(jax.grad(checkpoint_loops(fun))(start, "checkpointed"), wanted)
    assert np.abs(jax.grad(fun)(start, "checkpointed") - wanted).max() > 1e-3


def test_a_loop_that_is_left_alone_keeps_its_gradient() -> None:
    """Also if loops in it are replaced."""
    unbounded = PROGRAMS["no bound"]
    close(jax.grad(checkpoint_loops(unbounded))(X, 1.1), jax.grad(unbounded)(X, 1.1))
    inner = checkpoint_loops(nested, where=lambda loop: loop.depth > 0)
    close(jax.grad(inner)(X, 1.1), jax.grad(nested)(X, 1.1))
    alone = checkpoint_loops(run, where=lambda loop: False)
    with pytest.warns(UserWarning, match="it leaves all of them alone: while of test_equinox"):
        close(jax.grad(alone)(X, 1.1), jax.grad(run)(X, 1.1))


@eqx.filter_custom_vjp
def _checkpointed_while_loop(vjp_arg: Any, cond_fun: Any) -> Any:
    return lax.while_loop(cond_fun, lambda x: 1.5 * x + 1.0, vjp_arg)


_checkpointed_while_loop.def_fwd(lambda perturbed, x, f: (_checkpointed_while_loop(x, f), None))
_checkpointed_while_loop.def_bwd(lambda residuals, g, perturbed, x, f: 7 * g)


def test_another_rule_is_left_alone_and_named() -> None:
    """It has the name and the shape of Equinox's loop, but not its rule."""
    fun = lambda x: _checkpointed_while_loop(x, lambda x: x < 9)  # noqa: E731
    assert jax.grad(checkpoint_loops(fun))(0.5) == 7.0
    assert [*explain(fun)(0.5).not_entered] == ["fn_wrapped"]


def test_explain_shows_the_users_line() -> None:
    """And the smaller of the two bounds in the condition."""
    lines, first = inspect.getsourcelines(run)
    line = next(first + i for i, text in enumerate(lines) if "eqxi.while_loop" in text)
    (report,) = explain(run)(X, 1.1).loops
    assert (report.name, report.source) == ("while", f"test_equinox_loops.py:{line}")
    assert report.plan.length == 10
    (loop,) = explain(partial(run, max_steps=None, checkpoints=3, condition=far))(X, 1.1).left_alone
    assert (loop.is_equinox, loop.bound, loop.kind) == (True, None, "while")


def wave(u: Any, **options: Any) -> Any:
    """A field in time steps, as simulators of electromagnetic fields run it."""

    def step(state: Any) -> Any:
        i, u, v = state
        v = v + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * jnp.sin(u)
        return i + 1, u + 0.1 * v, v

    given = {"kind": "checkpointed", "max_steps": 400, "checkpoints": 10, **options}
    final = eqxi.while_loop(lambda state: state[0] < 400, step, (0, u, jnp.zeros_like(u)), **given)
    return jnp.sum(final[1] ** 2)


def test_bytes_beside_equinoxs() -> None:
    """With as many checkpoints, and with a budget that Equinox's one carry cannot meet."""
    u = np.linspace(0.0, 1.0, 5000)
    of = lambda fun: temporaries(jax.grad(fun), u)  # noqa: E731
    assert of(checkpoint_loops(wave, checkpoints=10)) < 0.75 * of(wave)
    least = of(partial(wave, checkpoints=1))
    assert of(checkpoint_loops(wave, checkpoints=1)) < 0.6 * least
    close(jax.grad(checkpoint_loops(wave, checkpoints=10))(u), jax.grad(wave)(u))
