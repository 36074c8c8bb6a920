"""Policies of `jax.checkpoint` around a loop: what they keep is not computed again; and around its
step: what a tape holds, and where."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from support.calls import option

from jax_revolve import bounded_while_loop, checkpointed_scan
from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve.jaxprs.parts import without_dead_code
from jax_revolve.step.policies import keeping

X = jnp.linspace(0.1, 1.0, 6)
STEPS = 24
POLICIES = jax.checkpoint_policies
NAMED = POLICIES.save_only_these_names("costly")
OFFLOADED = POLICIES.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["costly"],
    offload_src="device",
    offload_dst="pinned_host",
)
SCANS: dict[str, Callable[..., Any]] = {
    "default": checkpointed_scan,
    "blocks": partial(checkpointed_scan, checkpoints=3, block_size=2),
    "memory": partial(checkpointed_scan, memory="1kB"),
}
runs = 0


@jax.custom_jvp
def sine(x: Any) -> Any:
    def run(x: Any) -> Any:
        global runs
        runs += 1
        return np.sin(x)

    return jax.pure_callback(run, jax.typeof(x), x)


@sine.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return sine(*primals), jnp.cos(*primals) * tangents[0]


def loss(scan: Any, x: Any, costly: Any = jnp.sin) -> Any:
    @jax.jit
    def named(c: Any) -> Any:
        return checkpoint_name(costly(c), "costly")

    def step(c: Any, _: Any) -> Any:
        v = named(c)
        return jnp.tanh(1.1 * v) + 0.1 * c * v, jnp.sum(v)

    c, ys = scan(step, x, None, STEPS)
    return jnp.sum(c**2) + jnp.sum(jnp.sin(ys))


def under(policy: Any, scan: Any, costly: Any = jnp.sin) -> Any:
    return jax.checkpoint(lambda x: loss(scan, x, costly), policy=policy)


def runs_of(gradient: Any) -> int:
    global runs
    runs = 0
    jax.block_until_ready(jax.jit(gradient)(X))
    return runs


def new_remat(is_new: bool) -> Any:
    return option("jax_remat3") if is_new else nullcontext()


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_what_a_policy_keeps_is_not_computed_again(scan: Any, is_new: bool) -> None:
    with new_remat(is_new):
        kept, none = (
            runs_of(jax.grad(under(policy, scan, sine)))
            for policy in (NAMED, POLICIES.save_only_these_names("another"))
        )
        assert kept == runs_of(jax.grad(under(NAMED, lax.scan, sine))) == STEPS < none
        if not jax.config.values["jax_remat3"]:  # with it, `jax.checkpoint` does nothing then
            assert runs_of(jax.grad(under(POLICIES.everything_saveable, scan, sine))) == STEPS


DERIVATIVES: dict[str, Callable[..., Any]] = {
    "grad": jax.grad,
    "hessian": jax.hessian,
    "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(f)(x)))),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(f))(jnp.stack([x, 0.5 * x])),
    "grad of vmap": lambda f: (
        lambda x: jax.grad(lambda xs: jnp.sum(jax.vmap(f)(xs)))(jnp.stack([x, 0.5 * x]))
    ),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
}


KEPT = {"named": NAMED, "offloaded": OFFLOADED, "all": POLICIES.everything_saveable}
CASES = [
    *(("named", name, False) for name in DERIVATIVES),
    *(("offloaded", name, False) for name in ("grad", "hessian", "jvp")),  # JAX has no more of it
    *(("all", name, False) for name in ("grad", "hessian")),
    *(("named", name, True) for name in ("grad", "hessian")),
    ("offloaded", "grad", True),
]


@pytest.mark.parametrize(("policy", "derivative", "is_new"), CASES)
def test_derivatives(policy: str, derivative: str, is_new: bool) -> None:
    of = DERIVATIVES[derivative]
    with new_remat(is_new):
        found = of(under(KEPT[policy], SCANS["blocks"]))(X)
    expected = of(partial(loss, lax.scan))(X)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9), found, expected)


@pytest.mark.parametrize("policy", [NAMED, OFFLOADED])
def test_values_are_kept_where_the_policy_says(policy: Any) -> None:
    def kept(scan: Any) -> set[Any]:
        _, pullback = jax.vjp(under(policy, scan), X)
        leaves = [x for x in jax.tree.leaves(pullback) if x.shape == (STEPS, X.size)]
        return {x.sharding.memory_kind for x in leaves}

    assert kept(checkpointed_scan) == kept(lax.scan)


def test_a_while_loop_keeps_nothing_as_in_lax() -> None:
    def run(loop: Any, x: Any) -> Any:
        step = lambda c: checkpoint_name(jnp.sin(c), "costly")  # noqa: E731
        return jnp.sum(loop(lambda c: jnp.sum(c) > 1, step, x) ** 2)

    ours = jax.checkpoint(partial(run, partial(bounded_while_loop, max_steps=99)), policy=NAMED)
    np.testing.assert_allclose(
        jax.grad(ours)(X), jax.jacfwd(partial(run, lax.while_loop))(X), rtol=1e-9
    )


def test_what_cannot_be_kept_warns() -> None:
    def nest(x: Any) -> Any:
        inner = lambda c: lax.scan(  # noqa: E731
            lambda c, _: (checkpoint_name(jnp.sin(c), "costly"), None), c, None, 3
        )[0]
        return jnp.sum(checkpointed_scan(lambda c, _: (inner(c), None), x, None, 5)[0])

    def walked_back(x: Any) -> Any:
        step = lambda c, _: (checkpoint_name(2 * c, "costly"), None)  # noqa: E731
        return jnp.sum(checkpointed_scan(step, x, None, 5, inverse=lambda c, *_: c / 2)[0])

    for fun, what in ((nest, "a scan in a step"), (walked_back, "an inverse walks back")):
        with pytest.warns(UserWarning, match=f"policy of jax.checkpoint .* {what}"):
            found = jax.grad(jax.checkpoint(fun, policy=NAMED))(X)
        np.testing.assert_allclose(found, jax.grad(fun)(X), rtol=1e-12)


def test_dead_code_elimination_leaves_the_derivative_of_a_kept_value() -> None:
    """The value computed again looks dead, until the loop is differentiated."""
    step = lambda c, _: (checkpoint_name(jnp.sin(c), "costly"), None)  # noqa: E731
    scan = lambda x: checkpointed_scan(step, x, None, 5)[0]  # noqa: E731
    found = keeping(jax.make_jaxpr(scan)(X).jaxpr.eqns[0].params["function"], NAMED)
    assert found is not None
    again = without_dead_code(found[1].jaxpr)
    run = lambda c: call_jaxpr(again)(c, jnp.sin(X))[0]  # noqa: E731
    value, dot = jax.jvp(run, (X,), (jnp.ones(6),))
    np.testing.assert_allclose([value, dot], [jnp.sin(X), jnp.cos(X)], rtol=1e-12)


DOTS = POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host")


@pytest.mark.parametrize(
    ("options", "placed"),
    [
        ({"checkpoints": 3, "block_size": 4}, {"f32<host>[4,2,6]"}),
        ({"checkpoints": 3}, set()),
        ({"checkpoints": "all"}, set()),
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", [DOTS, OFFLOADED], ids=["dots", "names"])
@pytest.mark.usefixtures("default_precision")
def test_a_step_with_a_policy_that_offloads(policy: Any, options: Any, placed: set[str]) -> None:
    """It says where the tape of a block is. A block of one step has no tape."""
    weights, x = jnp.eye(6) + 0.1, jnp.linspace(0.1, 1.0, 12).reshape(2, 6)

    def gradient(scan: Any) -> Any:
        @partial(jax.checkpoint, policy=policy)
        def step(c: Any, _: Any) -> Any:
            return jnp.sin(checkpoint_name(c @ weights, "costly")), None

        return jax.grad(lambda x: jnp.sum(scan(step, x, None, STEPS)[0]))

    ours, theirs = gradient(partial(checkpointed_scan, **options)), gradient(lax.scan)
    np.testing.assert_allclose(jax.jit(ours)(x), jax.jit(theirs)(x), rtol=1e-4)
    types = re.findall(r"f32<host>\[[\d,]*\]", str(jax.make_jaxpr(ours)(x)))
    assert set(types) - {"f32<host>[]"} == placed  # a constant fills the tape


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("block_size", [1, 2])
def test_values_on_the_host_under_checks(block_size: int, is_checked: bool) -> None:
    """A step reads xs in the host's memory from there, and JAX checks their types."""
    scan: Any = partial(checkpointed_scan, checkpoints=3, block_size=block_size)

    def of_xs(scan: Any, x: Any) -> Any:
        step = lambda c, s: (jnp.sin(c) * jax.device_put(s, jax.memory.Space.Device), None)  # noqa: E731
        xs = jax.device_put(jnp.linspace(0.5, 1.0, STEPS), jax.memory.Space.Host)
        return jnp.sum(scan(step, x, xs)[0])

    def kept(scan: Any, x: Any) -> Any:
        return jax.checkpoint(partial(loss, scan), policy=OFFLOADED)(x)

    for program in (of_xs, kept):
        expected = jax.grad(partial(program, lax.scan))(X)
        with jax.enable_checks(is_checked):
            ours = jax.jit(jax.grad(partial(program, scan)))(X)
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
