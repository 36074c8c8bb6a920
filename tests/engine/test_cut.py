"""The fewest bytes from which the residuals of a step are computed again."""

from collections.abc import Callable
from functools import partial
from itertools import chain, combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from support.compiled import temporaries
from support.oracles import assert_like_lax
from support.steps import gru, lstm, runge_kutta

from jax_revolve import checkpointed_scan, explain
from jax_revolve._compat.values import bytes_of
from jax_revolve.engine.tape import cut, tape
from jax_revolve.engine.tape.cut import SINK, SOURCE, minimum_cut

pytestmark = pytest.mark.usefixtures("default_precision")

LENGTH = 12


def draw(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) / 2).astype(np.float32)


def lorenz(_: Any, u: Any, __: Any) -> Any:
    return runge_kutta(lambda u: (jnp.roll(u, -1) - jnp.roll(u, 2)) * jnp.roll(u, 1) - u + 8.0, u)


def wave(_: Any, carry: Any, __: Any) -> Any:
    u, v = carry
    spread = sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * u
    v = v + 0.1 * (spread - jnp.sin(u))
    return u + 0.1 * v, v


def pairs(_: Any, carry: Any, __: Any) -> Any:
    """Forces between all pairs."""
    q, v = carry
    apart = q[:, None] - q[None]
    square = jnp.sum(apart**2, -1) + 0.1
    v = v - 0.01 * jnp.sum(apart * (square**-1.5)[..., None], 1)
    return q + 0.01 * v, v


def named(_: Any, u: Any, __: Any) -> Any:
    """The sine would follow from what is kept of the cosine's argument, but is marked."""
    return u + jnp.cos(checkpoint_name(jnp.sin(2.0 * u), "kept") * u)


def with_policy(_: Any, u: Any, __: Any) -> Any:
    policy = jax.checkpoint_policies.save_only_these_names("kept")
    return jax.checkpoint(lambda u: named(None, u, None), policy=policy)(u)


def recurrent(weights: Any, carry: Any, x: Any) -> Any:
    """The tanh is the next state, and is also in a product with weights."""
    state, total = carry
    state = jnp.tanh(state @ weights["u"] + x)
    return state, total + state @ weights["t"]


def leapfrog(weights: Any, carry: Any, x: Any) -> Any:
    """A leaf becomes another twice, and then a third."""
    a, b, c = carry
    after = jnp.tanh(a @ weights["u"] + jnp.sin(b @ weights["t"]) + jnp.cos(c @ weights["u"]) + x)
    return b, c, after


GATES = {"w": draw(0, 4, 8), "v": draw(1, 4, 8), "u": draw(2, 4, 4), "t": draw(3, 4, 4)}
FOUR = {"w": draw(0, 4, 16), "v": draw(1, 4, 16), "b": draw(2, 16)}
PAIR = (draw(0, 8, 3), draw(1, 8, 3))
CASES: dict[Callable[..., Any], tuple[Any, Any, Any, float, float]] = {
    gru: (GATES, draw(7, 3, 4), draw(8, LENGTH, 3, 4), 9, 4),
    lstm: (FOUR, (draw(7, 3, 4),) * 2, draw(8, LENGTH, 3, 4), 6, 3),
    lorenz: (None, 8 + draw(0, 40), None, 8, 1),
    wave: (None, (draw(0, 5, 6), draw(1, 5, 6)), None, 0.5, 0.5),
    pairs: (None, PAIR, None, 10 + 2 / 3, 0.5),
    named: (None, draw(0, 40), None, 4, 2),
    with_policy: (None, draw(0, 40), None, 2, 2),
    recurrent: (GATES, (draw(7, 3, 4), draw(9, 3, 4)), draw(8, LENGTH, 3, 4), 1.5, 0.5),
    leapfrog: (GATES, tuple(draw(i, 3, 4) for i in (7, 8, 9)), draw(8, LENGTH, 3, 4), 2, 1),
}
"""Weights, carry, xs; and the residuals of a step in carries, as JAX keeps them and at least."""


def scanned(scan: Any, step: Any, arguments: Any) -> Any:
    weights, carry, xs = arguments
    run = lambda carry, x: (step(weights, carry, x), None)  # noqa: E731
    final, _ = scan(run, carry, xs, length=LENGTH)
    return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(final))


@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__)
def test_bytes_that_are_kept(step: Any) -> None:
    *arguments, uncut, least = CASES[step]
    (report,) = explain(partial(scanned, checkpointed_scan, step))(arguments).loops
    carry, sizes = bytes_of(map(jax.typeof, jax.tree.leaves(arguments[1]))), report.sizes
    assert (sizes.uncut, sizes.residuals) == (round(uncut * carry), round(least * carry))
    assert sizes.alone <= (uncut + least) * carry
    assert ("if none is recomputed" in str(report)) == (uncut > least)


@pytest.mark.parametrize(
    ("step", "block_size"),
    [
        pytest.param(step, k, id=f"{step.__name__}-{k}", marks=[] if quick else pytest.mark.slow)
        for i, step in enumerate(CASES)
        for j, k in enumerate([1, 5, LENGTH])
        for quick in [(i + j) % 3 == 0]
    ],
)
@pytest.mark.usefixtures("compile_quickly")
def test_gradient(step: Any, block_size: int) -> None:
    scan = partial(checkpointed_scan, checkpoints=3, block_size=block_size)
    program = lambda scan, arguments: scanned(scan, step, arguments)  # noqa: E731
    gradient = partial(jax.grad, allow_int=True)
    assert_like_lax(program, gradient, CASES[step][:3], scan=scan, rtol=1e-4)


@pytest.mark.parametrize("step", [gru, lstm], ids=lambda step: step.__name__)
def test_products_never_run_again(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def products(best: Any) -> int:
        monkeypatch.setattr(tape, "best_cut", best)
        gradient = jax.grad(partial(scanned, partial(checkpointed_scan, block_size=5), step))
        return jax.jit(gradient).lower(CASES[step][:3]).as_text().count("dot_general")

    as_jax_does = lambda step, profile: cut.cut_at(step, cut.uncut(step), profile)  # noqa: E731
    assert 0 < products(cut.best_cut) <= products(as_jax_does)


@pytest.mark.unchecked
@pytest.mark.parametrize("step", [gru, lorenz], ids=lambda step: step.__name__)
def test_memory_of_a_loop_that_is_taped_whole(step: Any) -> None:
    scan = partial(checkpointed_scan, checkpoints=1, block_size=LENGTH)
    ours, lax_scan = (
        temporaries(jax.grad(partial(scanned, s, step)), CASES[step][:3]) for s in (scan, lax.scan)
    )
    assert ours < 0.6 * lax_scan


GRAPHS = st.integers(2, 6).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(0, 5), min_size=count, max_size=count),
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=12),
        st.sets(st.integers(0, count - 1), min_size=1),
        st.sets(st.integers(0, count - 1), min_size=1),
    )
)
"""The cost of each value; which follows from which; those that only can be kept; residuals."""


@given(GRAPHS)
def test_minimum_cut(graph: Any) -> None:
    """Beside every set of values, of graphs in which a value follows from earlier ones."""
    costs, pairs, sources, sinks = graph
    count = len(costs)
    pairs = [(min(p), max(p)) for p in pairs if len({*p}) == 2]

    def suffices(kept: set[int]) -> bool:
        """Whether no way leads from a source to a sink around what is kept."""
        reached = {v for v in sources if v not in kept}
        for a, b in sorted(pairs):
            if a in reached and b not in kept:
                reached.add(b)
        return reached.isdisjoint(sinks)

    subsets = chain.from_iterable(combinations(range(count), k) for k in range(count + 1))
    least = min(sum(costs[v] for v in kept) for kept in map(set, subsets) if suffices(kept))

    entry, leave = (lambda v: 2 * v + 2), (lambda v: 2 * v + 3)
    limits = {(entry(v), leave(v)): cost for v, cost in enumerate(costs)}
    unlimited = [(SOURCE, entry(v)) for v in sources] + [(leave(v), SINK) for v in sinks]
    unlimited += [(leave(a), entry(b)) for a, b in pairs]
    for scale in (1, 2**40):
        beyond = minimum_cut({edge: scale * c for edge, c in limits.items()}, unlimited)
        kept = {v for v in range(count) if entry(v) not in beyond and leave(v) in beyond}
        assert suffices(kept)
        assert sum(costs[v] for v in kept) == least
