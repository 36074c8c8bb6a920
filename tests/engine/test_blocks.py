"""Blocks of steps that are taped together: counts, bytes, program size, products of weights."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.compiled import (
    CARRY_BYTES,
    compiled,
    instructions,
    residuals_of_one_step,
    state,
    stencil,
    temporaries,
)
from support.evaluations import executed, steps_executed, steps_of
from support.steps import rnn

from jax_revolve import Disk, Plan, bounded_while_loop, checkpointed_scan, plan
from jax_revolve.engine.tape import weight_gradients
from jax_revolve.engine.tape.weight_gradients import WeightGradients
from jax_revolve.schedule import cost

pytestmark = pytest.mark.usefixtures("default_precision")

EVERY_PAIR: Any = (((), ()), ((), ()))
"""The dimension numbers of an outer product."""


@pytest.mark.unchecked
@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    ("length", "checkpoints", "block_size"), [(2, 1, 2), (7, 1, 3), (41, 4, 3)]
)
def test_executed_steps_are_those_of_the_schedule(
    length: int, checkpoints: int, block_size: int
) -> None:
    """The value is complete when the last block is taped: nothing is run for it alone."""
    chosen = plan(length, checkpoints, block_size=block_size)
    order = steps_executed(length, None, jax.value_and_grad, plan=chosen)
    assert order == steps_of(chosen)
    assert len(order) == chosen.evaluations

    def loss(a: Any, note: Any) -> Any:
        def body(carry: Any) -> Any:
            note(carry[0])
            return carry[0] + 1, jnp.sin(carry[1])

        options: Any = {"checkpoints": checkpoints, "block_size": block_size}
        until = lambda carry: carry[0] < length  # noqa: E731
        return bounded_while_loop(until, body, (0, a), max_steps=length + 5, **options)[1]

    taken = Plan(length, min(checkpoints, -(-length // block_size)), block_size)
    assert len(executed(loss)) == cost.evaluations(taken, is_while=True)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("length", "checkpoints", "block_size", "carries"),
    [(997, 3, 2, 5.1), (997, 10, 37, 11.1), (100, None, 100, 3.1), (100, None, 60, 3.1)],
)
def test_gradient_holds_checkpoints_and_a_tape(
    length: int, checkpoints: int | None, block_size: int, carries: float
) -> None:
    """A loop of two steps is unrolled, and takes a carry more. XLA unrolls a loop around a single
    block, too, and once held two tapes then."""
    scan = partial(checkpointed_scan, checkpoints=checkpoints, block_size=block_size)
    held = temporaries(jax.grad(stencil(scan, length)), state())
    assert held <= carries * CARRY_BYTES + block_size * residuals_of_one_step()


def test_program_size_does_not_grow() -> None:
    """It differs by a few instructions with what XLA finds out about the loop lengths."""
    counts = []
    for length, checkpoints, block_size in [(100, 10, 8), (997, 10, 20), (10**6, 50, 100)]:
        scan = partial(checkpointed_scan, checkpoints=checkpoints, block_size=block_size)
        program = compiled(jax.grad(stencil(scan, length)), state(100))
        counts.append(instructions(program.as_text()))
    assert max(counts) <= 1.1 * min(counts)


def test_slots_and_tape_are_updated_in_place() -> None:
    scan = partial(checkpointed_scan, checkpoints=14, block_size=17)
    text = compiled(jax.grad(stencil(scan, 1000)), state()).as_text()
    for entries in (13, 17):
        made = re.findall(rf"= f32\[{entries},20000\]\S* ([\w-]+)\(", text)
        allowed = {"parameter", "get-tuple-element", "broadcast", "fusion", "dynamic-update-slice"}
        assert made
        assert set(made) <= allowed | {"while", "bitcast"}
        assert made.count("broadcast") == 1


def vectors(p: Any, h: Any, x: Any) -> Any:
    """Products without a batch: outer products of vectors."""
    return h.at[0].set(jnp.tanh(p["w"] @ h[0] + p["v"] @ x[1]))


def batched(p: Any, h: Any, x: Any) -> Any:
    """A product with a batch axis in the weight itself, and one of what is made of a weight."""
    made = 0.5 * jnp.cos(p["w"])
    pieces = jnp.einsum("bij,jik->bik", h.reshape(3, 2, 2), made.reshape(2, 2, 4))
    return jnp.tanh(pieces[:, :, :2].reshape(3, 4) - (x @ p["v"].T) / 3)


def with_rule(backward: Any) -> Any:
    product = jax.custom_vjp(lambda h, w: h @ w)
    product.defvjp(lambda h, w: (h @ w, (h, w)), lambda held, ct: backward(*held, ct))
    return product


@with_rule
def watched(h: Any, w: Any, ct: Any) -> Any:
    jax.debug.callback(lambda x: None, jnp.sum(ct))
    return ct @ w.T, jnp.cos(w) * (h.T @ ct)


@with_rule
def squared(h: Any, w: Any, ct: Any) -> Any:
    return ct @ w.T, jnp.einsum("bi,bj->ij", h, h)


def with_effects(p: Any, h: Any, x: Any) -> Any:
    """A rule with an effect, whose product is scaled by what does not vary."""
    return jnp.tanh(watched(h, p["w"]) + x @ p["v"])


def of_the_tape(p: Any, h: Any, x: Any) -> Any:
    """A rule whose product has both factors on the tape, where steps that do not count are not
    zero."""
    return jnp.tanh(squared(h, p["w"]) + x @ p["v"])


def per_example(p: Any, h: Any, x: Any) -> Any:
    """A weight for each example: the batch is an axis of the product, as `jax.vmap` makes it."""
    scale = jnp.arange(1.0, 4.0)[:, None, None]
    product = lambda x, w: jnp.einsum("hi,hij->hj", x, scale * w)  # noqa: E731
    return jnp.tanh(product(h, p["w"]) + product(x, p["v"]))


def half(p: Any, h: Any, x: Any) -> Any:
    narrow = p["w"].astype(jnp.bfloat16)
    return jnp.tanh((h.astype(jnp.bfloat16) @ narrow).astype(h.dtype) + x @ p["v"])


def squared_often(p: Any, h: Any, x: Any) -> Any:
    """There are 2**20 ways from the cotangent of the weight to the product."""
    w = p["w"]
    for _ in range(20):
        w = w + 0.1 * w * w
    return jnp.tanh(h @ w + x @ p["v"])


STEPS = rnn, vectors, batched, per_example, with_effects, of_the_tape, half, squared_often


@pytest.mark.unchecked
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.usefixtures("compile_quickly")
def test_cotangents_of_weights_are_products_over_a_block(
    step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred: list[int] = []
    reverse = step in (rnn, per_example)

    def defer(self: WeightGradients, cotangent: Any) -> bool:
        is_deferred = original(self, cotangent)
        deferred.append(is_deferred)
        return is_deferred

    original = WeightGradients._defer
    monkeypatch.setattr(WeightGradients, "_defer", defer)
    monkeypatch.setattr(weight_gradients, "LEAST_WEIGHT", 0)
    monkeypatch.setattr(weight_gradients, "MOST_KEPT", float("inf"))
    monkeypatch.setattr(weight_gradients, "STEPS_IN_A_PRODUCT", 2)
    monkeypatch.setattr(jax, "device_count", lambda: 1)  # the generator has several
    normal = np.random.default_rng(0).normal
    draw = lambda *shape: jnp.asarray(normal(size=shape) / 2)  # noqa: E731
    p = {"w": draw(4, 4), "v": draw(4, 4), "b": draw(4)}
    h, xs = draw(3, 4), draw(11, 3, 4)

    def loss(scan: Any, p: Any, h: Any, xs: Any) -> Any:
        h, ys = scan(lambda h, x: (step(p, h, x), h[0]), h, xs, reverse=reverse)
        return jnp.sum(h**2) + jnp.sum(jnp.sin(ys))

    # The blocks of five steps are pulled back in pieces of one, two and two steps.
    scan = partial(checkpointed_scan, checkpoints=2, block_size=2 if reverse else 5)
    ours, theirs = (
        jax.jit(jax.grad(partial(loss, each), (0, 1, 2)))(p, h, xs) for each in (scan, lax.scan)
    )
    jax.effects_barrier()
    tolerance = 0.05 if step is half else 1e-5
    jax.tree.map(partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), ours, theirs)
    assert sum(deferred) == (1 if step is of_the_tape else 2)


def gradient_of_weights(length: int, block_size: int, checkpoints: int) -> Any:
    """Compiled, of a weight of 256 by 256 and a batch of eight."""
    w, h = (jax.ShapeDtypeStruct((n, 256), jnp.float32) for n in (256, 8))

    def loss(w: Any, h: Any) -> Any:
        step = lambda h, _: (jnp.tanh(h @ w), None)  # noqa: E731
        how: Any = {"block_size": block_size, "checkpoints": checkpoints}
        return jnp.sum(checkpointed_scan(step, h, None, length, **how)[0] ** 2)

    return compiled(jax.grad(loss), w, h)


@pytest.mark.unchecked
def test_the_sum_over_a_block_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the compiled program: products of k times the batch."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)  # so XLA divides no arrays
    text = gradient_of_weights(100, 20, 4).as_text()
    # One for the block that the forward sweep taped, one in the loop over the others; what is kept
    # has its axes merged in place, and is not copied with its axes in another order.
    assert len(re.findall(r"= f32\[256,256\]\S* dot\(([^)]*)\)", text)) == 2
    merged = re.findall(r"= f32\[(?:160,256|256,160)\]\S* ([\w-]+)\(", text)
    assert set(merged) == {"bitcast"}


@pytest.mark.unchecked
def test_factors_of_products_are_kept_for_a_piece_of_a_block() -> None:
    """They were kept for all steps of a block, which doubled what a long one takes."""
    # The tape has the state, which is the tanh of the step before.
    taped, kept, weight = (4 * 256 * n for n in (8 * 200, 8 * 32, 256))
    held = gradient_of_weights(200, 200, 1).memory_analysis().temp_size_in_bytes
    assert taped < held < taped + 2 * kept + 2 * weight


@pytest.mark.unchecked
def test_a_single_block_before_the_tape_has_no_tape_of_its_own(tmp_path: Path) -> None:
    """XLA unrolled the loop around blocks that turns once, as it saw the number of turns."""
    disk = Disk(tmp_path, transfer=0.1)
    held = [
        temporaries(
            jax.grad(stencil(partial(checkpointed_scan, plan=p), p.length)),
            jnp.ones(CARRY_BYTES // 4),
        )
        for p in (plan(length, 1, block_size=16, storage=disk) for length in (64, 96))
    ]
    assert max(held) < 1.2 * 17 * CARRY_BYTES


def test_a_number_among_the_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_gradients, "LEAST_WEIGHT", 0)

    def loss(scan: Any, weight: Any) -> Any:
        def step(u: Any, x: Any) -> Any:
            return lax.dot_general(jnp.tanh(weight @ u) + x, np.float32(0.3), EVERY_PAIR), None

        return jnp.sum(scan(step, jnp.ones(4), jnp.ones((8, 4)))[0] ** 2)

    ours = partial(checkpointed_scan, checkpoints=2, block_size=4)
    gradients = [jax.grad(partial(loss, scan))(0.5 * jnp.eye(4)) for scan in (ours, lax.scan)]
    np.testing.assert_allclose(*gradients, rtol=1e-5)
