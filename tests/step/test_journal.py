"""Histories that a journal undoes: every kind of write, beside lax's loops."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.compiled import compiled

from jax_revolve import HostMemory, bounded_while_loop, checkpointed_scan, explain, plan
from jax_revolve.step import journal

LENGTH, ROWS, WIDTH = 12, 32, 2

Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def index(c: Any) -> Any:
    """An index that depends on data, often out of bounds."""
    return jnp.floor(50 * jnp.sum(c)).astype(jnp.int32) % (ROWS + 4) - 2


def twice(h: Any, c: Any, i: Any) -> Any:
    """Two writes that overlap, one of them clamped."""
    h = lax.dynamic_update_slice(h, jnp.stack([c, jnp.sin(c), -c]), (i - 2, 0))
    return h.at[i - index(c) % 3].add(c, mode="drop")


def either(h: Any, c: Any, i: Any) -> Any:
    """One write on top of another, or a third."""
    both = h.at[i % 5].set(c).at[(3 * i) % 5].multiply(c)
    return jnp.where(i % 3 == 0, h.at[1].set(-c), both)


WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "slice": lambda h, c, i: lax.dynamic_update_slice(h, jnp.stack([c, -c]), (i - 3, 0)),
    "set": lambda h, c, i: h.at[(5 * i) % 7].set(c),
    "drop": lambda h, c, i: h.at[index(c)].set(c, mode="drop"),
    "clip": lambda h, c, i: h.at[index(c)].set(c, mode="clip"),
    "add": lambda h, c, i: h.at[index(c)].add(jnp.sin(c)),
    "multiply": lambda h, c, i: h.at[i % 4].multiply(c + 1.5),
    "max": lambda h, c, i: h.at[i % 4].max(c),
    "repeated": lambda h, c, i: h.at[jnp.array([1, 1, 2])].add(c * (i + 1)),
    "entry": lambda h, c, i: h.at[i % 5, i % WIDTH].set(c[0]),
    "guarded": lambda h, c, i: jnp.where(i % 3 != 0, h.at[i % 5].set(c), h),
    "jit": lambda h, c, i: jax.jit(lambda h: h.at[i % 5].set(c))(h),
    "twice": twice,
    "either": either,
}

READS: dict[str, Callable[[Any, Any], Any]] = {
    "entry": lambda h, i: h[(i + 2) % 7],
    "whole": lambda h, i: jnp.mean(jnp.sin(h), 0),
}


def step(write: str, read: str, *, is_after: bool) -> Step:
    """Reads before it writes, or after."""

    def run(w: Any, state: Any, i: Any) -> Any:
        c, h = state
        before = READS[read](h, i)
        after = WRITES[write](h, c, i)
        seen = READS[read](after, i) if is_after else before
        return jnp.tanh(0.7 * c + w * seen + 0.1), after

    return run


def start(x: Any) -> Any:
    return x, jnp.cos(jnp.arange(1.0, 1 + ROWS * WIDTH)).reshape(ROWS, WIDTH) * jnp.sum(x)


def loss_of(state: Any) -> Any:
    return jnp.sum(state[0] ** 2) + jnp.sum(jnp.sin(state[1]))


def scanned(run: Step, scan: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    def loss(w: Any, x: Any) -> Any:
        f = lambda state, i: (run(w, state, i), None)  # noqa: E731
        return loss_of(scan(f, start(x), jnp.arange(LENGTH), **how)[0])

    return loss


W, X = jnp.array([0.8, -0.5]), jnp.array([0.3, 0.6])


def gradient(loss: Callable[..., Any], *more: Any) -> Any:
    return jax.jit(jax.grad(loss, (0, 1)))(W, X, *more)


def of_second_order(loss: Callable[..., Any]) -> Any:
    pushed = lambda w, x: jax.jvp(jax.grad(loss, (0, 1)), (w, x), (jnp.cos(w), jnp.sin(x)))[1]  # noqa: E731
    again = lambda w, x: sum(jnp.sum(jnp.sin(g)) for g in jax.grad(loss, (0, 1))(w, x))  # noqa: E731
    return jax.jit(lambda w, x: (pushed(w, x), jax.grad(again, (0, 1))(w, x)))(W, X)


def assert_same(found: Any, wanted: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), found, wanted)


PLANS: list[dict[str, Any]] = [
    {"checkpoints": 4},
    {"checkpoints": 4, "block_size": 2},
    {"checkpoints": "all"},
    {"checkpoints": 5, "storage": HostMemory(transfer=0.1)},
    {"plan": plan(LENGTH, levels=(3, 4))},
]


def logged(fun: Callable[..., Any], *arguments: Any) -> int:
    """The bytes of the journal of the gradient's loop."""
    return explain(fun)(*arguments).loops[0].sizes.journal


@pytest.mark.unchecked
@pytest.mark.parametrize(("number", "write"), list(enumerate(WRITES)))
def test_each_write_is_undone(number: int, write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not without the undo."""
    run = step(write, list(READS)[number % 2], is_after=number % 3 == 0)
    wanted = gradient(scanned(run, lax.scan))
    assert logged(scanned(run, checkpointed_scan, checkpoints=4), W, X)
    assert_same(gradient(scanned(run, checkpointed_scan, checkpoints=4)), wanted)
    monkeypatch.setattr(journal, "with_entries", lambda eqn, array, at, entries: array)
    with pytest.raises(AssertionError):
        assert_same(gradient(scanned(run, checkpointed_scan, checkpoints=4)), wanted)


@pytest.mark.parametrize(("number", "how"), list(enumerate(PLANS)))
def test_each_plan_undoes(number: int, how: dict[str, Any]) -> None:
    run = step("drop", list(READS)[number % 2], is_after=number % 3 == 0)
    loss = scanned(run, checkpointed_scan, **how)
    assert logged(loss, W, X)
    assert_same(gradient(loss), gradient(scanned(run, lax.scan)))


@pytest.mark.parametrize("write", ["drop", "either"])
def test_second_derivatives(write: str) -> None:
    run = step(write, "whole", is_after=True)
    loss = scanned(run, checkpointed_scan, checkpoints=4)
    assert_same(of_second_order(loss), of_second_order(scanned(run, lax.scan)))


def test_a_mapped_gradient() -> None:
    """Each example has indices of its own."""
    run, xs = step("add", "entry", is_after=False), jnp.stack([X, -2 * X])

    def mapped(loss: Callable[..., Any]) -> Any:
        of_both = lambda w: jnp.sum(jnp.sin(jax.vmap(partial(loss, w))(xs)))  # noqa: E731
        each = jax.vmap(jax.grad(loss, (0, 1)), (None, 0))
        return jax.jit(lambda w: (each(w, xs), jax.grad(of_both)(w)))(W)

    loss = scanned(run, checkpointed_scan, checkpoints=4)
    assert_same(mapped(loss), mapped(scanned(run, lax.scan)))


def repeated(run: Step, loop: Callable[..., Any]) -> Callable[..., Any]:
    """The steps before a limit that each example has."""

    def loss(w: Any, x: Any, limit: Any) -> Any:
        body = lambda state: (state[0] + 1, run(w, state[1], state[0]))  # noqa: E731
        return loss_of(loop(lambda state: state[0] < limit, body, (0, start(x)))[1])

    return loss


def masked(condition: Any, body: Any, state: Any) -> Any:
    def run(state: Any, _: Any) -> Any:
        goes_on = condition(state)
        return jax.tree.map(partial(jnp.where, goes_on), body(state), state), None

    return lax.scan(run, state, None, LENGTH)[0]


@pytest.mark.parametrize(
    ("write", "read"), [("set", "entry"), ("either", "whole"), ("clip", "whole")]
)
def test_examples_that_are_done(write: str, read: str) -> None:
    """They go on in the loop, and undo nothing."""
    run, xs, limits = (
        step(write, read, is_after=write == "either"),
        jnp.stack([X, X / 2, X]),
        jnp.array([7, 12, 0]),
    )
    loop = partial(bounded_while_loop, max_steps=LENGTH, checkpoints=8)
    assert logged(repeated(run, loop), W, X, 9)

    def mapped(loss: Callable[..., Any]) -> Any:
        each = jax.vmap(jax.grad(loss, (0, 1)), (None, 0, 0))
        of_all = lambda w: jnp.sum(jnp.sin(jax.vmap(partial(loss, w))(xs, limits)))  # noqa: E731
        return jax.jit(lambda w: (each(w, xs, limits), jax.grad(of_all)(w)))(W)

    assert_same(mapped(repeated(run, loop)), mapped(repeated(run, masked)))


def random_program(seed: int) -> tuple[Step, dict[str, Any], bool, bool]:
    """A step with one to three writes of random kinds, some under a select, to one history or two;
    how it is run; and whether in a while loop, and mapped."""
    rng = np.random.default_rng(seed)
    names, reads = list(WRITES), list(READS)
    kinds = rng.choice(names, rng.integers(1, 4))
    selects, read, is_after = rng.random(3) < 0.3, str(rng.choice(reads)), rng.random() < 0.5

    def run(w: Any, state: Any, i: Any) -> Any:
        c, h = state
        seen = READS[read](h, i)
        for kind, is_selected in zip(kinds, selects, strict=False):
            new = WRITES[str(kind)](h, c, i)
            h = jnp.where((i + jnp.sum(c > 0)) % 2 == 0, new, h) if is_selected else new
        seen = READS[read](h, i) if is_after else seen
        return jnp.tanh(0.7 * c + w * seen + 0.1), h

    is_while = rng.random() < 0.4
    ways = [{"checkpoints": 4}, {"checkpoints": "all"}, {"checkpoints": 8}] if is_while else PLANS
    return run, ways[rng.integers(len(ways))], is_while, rng.random() < 0.4


SEEDS = [
    pytest.param(
        seed, marks=[] if seed == 0 else pytest.mark.slow if seed < 8 else pytest.mark.exhaustive
    )
    for seed in range(500)
]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories(seed: int) -> None:
    """To first, second or third order."""
    run, how, is_while, is_mapped = random_program(seed)
    xs, limits = jnp.stack([X, X / 2, -X]), jnp.array([7, LENGTH, 0])
    if is_while:
        loop = partial(bounded_while_loop, max_steps=LENGTH, **how)
        ours, oracle = repeated(run, loop), repeated(run, masked)
    else:
        losses = scanned(run, checkpointed_scan, **how), scanned(run, lax.scan)
        ours, oracle = ((lambda w, x, _, loss=loss: loss(w, x)) for loss in losses)

    def derivatives(loss: Any) -> Any:
        if is_mapped:
            whole = lambda w, x: jnp.sum(jnp.sin(jax.vmap(loss, (None, 0, 0))(w, x, limits)))  # noqa: E731
            at = xs
        else:
            whole, at = lambda w, x: loss(w, x, 9), X
        first = jax.grad(whole, (0, 1))
        along = jnp.cos(W), jnp.sin(at)
        second = lambda w, x: jax.jvp(first, (w, x), along)[1]  # noqa: E731
        third = jax.grad(lambda w, x: sum(jnp.sum(jnp.sin(g)) for g in second(w, x)))
        return jax.jit([first, first, second, third][seed % 4])(W, at)

    assert_same(derivatives(ours), derivatives(oracle))


def test_indices_of_counters_and_xs_are_not_logged() -> None:
    old, history = 8 * WIDTH, 8 * ROWS * WIDTH
    for write, size in ("set", old), ("drop", old + 4), ("guarded", old):
        loss = scanned(step(write, "entry", is_after=False), checkpointed_scan, checkpoints=4)
        assert logged(loss, W, X) == LENGTH * size + history

    def counting(x: Any) -> Any:
        def run(state: Any, _: Any) -> Any:
            i, (c, h) = state
            return (i + 2, (jnp.sin(c + h[i // 3]), h.at[i // 2].set(c))), None

        initial = jnp.int32(0), start(x)
        return loss_of(checkpointed_scan(run, initial, None, LENGTH, checkpoints=4)[0][1])

    assert logged(counting, X) == LENGTH * old + history


def test_a_long_loop_over_a_small_history_has_no_journal() -> None:
    """It would be larger than the checkpoints."""

    def loss(x: Any, length: int) -> Any:
        run = lambda state, i: (step("set", "entry", is_after=False)(W, state, i), None)  # noqa: E731
        return loss_of(checkpointed_scan(run, start(x), jnp.arange(length), checkpoints=4)[0])

    assert logged(partial(loss, length=50), X)
    assert not logged(partial(loss, length=100), X)


@pytest.mark.unchecked
@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize("how", [{"checkpoints": 10}, {"checkpoints": 10, "block_size": 8}])
def test_a_delay_line_is_held_once_and_never_copied(how: dict[str, Any]) -> None:
    """Besides its cotangent, the journal and, at the peak, its value at the end."""
    length, width = 1000, 50
    shape = (length + 20, width)

    def loss(x: Any) -> Any:
        def run(state: Any, i: Any) -> Any:
            c, h = state
            c = jnp.tanh(0.9 * c + 0.2 * h[i] + 0.01)
            return (c, h.at[i + 20].set(c)), None

        first = x, jnp.concatenate([jnp.broadcast_to(x, (20, width)), jnp.zeros((length, width))])
        return jnp.sum(checkpointed_scan(run, first, jnp.arange(length), **how)[0][0] ** 2)

    made = compiled(jax.grad(loss), jnp.ones(width, jnp.float32))
    assert made.memory_analysis().temp_size_in_bytes <= 4.1 * 4 * shape[0] * shape[1]
    assert copies_in_loops(made.as_text(), shape) == []


def copies_in_loops(text: str, shape: tuple[int, ...]) -> list[str]:
    """The copies of arrays of this shape outside the program's entry computation."""
    found, is_entry = list[str](), False
    for line in text.splitlines():
        if line.endswith("{"):
            is_entry = line.startswith("ENTRY")
        if not is_entry and re.search(rf"= f32\[{shape[0]},{shape[1]}\]\S* copy\(", line):
            found.append(line)
    return found
