"""Bytes and instructions of compiled programs: exact, so they are asserted."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from support.compiled import (
    CARRY_BYTES,
    WIDTH,
    Scan,
    compiled,
    instructions,
    residuals_of_one_step,
    state,
    stencil,
    stencil_step,
    temporaries,
)
from support.evaluations import repeat

from jax_revolve import bounded_while_loop, checkpointed_scan, plan
from jax_revolve.engine.placement import Placement

pytestmark = pytest.mark.usefixtures("default_precision")


def while_stencil(checkpoints: Any, max_steps: int = 4096) -> Callable[..., Any]:
    """As many steps as the limit says, which the compiler does not know."""

    step = lambda u: stencil_step(u, None)[0]  # noqa: E731
    options = {"max_steps": max_steps, "checkpoints": checkpoints}
    return lambda u, limit: jnp.sum(repeat(step, limit, u, **options) ** 2)


LIMIT = jax.ShapeDtypeStruct((), jnp.int32)


@pytest.mark.parametrize(("length", "checkpoints"), [(997, 10), (1000, 30), (None, 30)])
def test_gradient_holds_the_checkpoints_and_one_step(length: Any, checkpoints: int) -> None:
    if length is None:
        held = temporaries(jax.grad(while_stencil(checkpoints)), state(), LIMIT)
    else:
        scan = partial(checkpointed_scan, checkpoints=checkpoints)
        held = temporaries(jax.grad(stencil(scan, length)), state())
    assert held <= 1.15 * (checkpoints * CARRY_BYTES + residuals_of_one_step())


def test_cotangents_of_xs_and_ys_appear_once() -> None:
    length, width = 500, 2000
    whole, carry = 4 * length * width, 4 * width

    def loss(u: Any, xs: Any, *, of_ys: bool) -> Any:
        def step(u: Any, x: Any) -> Any:
            u = jnp.sin(u) * x
            return u, u * x if of_ys else None

        u, ys = checkpointed_scan(step, u, xs, checkpoints=10)
        return jnp.sum(ys**2 if of_ys else u)

    arguments = state(width), jax.ShapeDtypeStruct((length, width), jnp.float32)
    # The cotangent of xs is an output of the program, the ys and their cotangent are not.
    of_carry = compiled(jax.grad(partial(loss, of_ys=False), (0, 1)), *arguments).memory_analysis()
    assert of_carry.output_size_in_bytes <= whole + 2 * carry
    assert of_carry.temp_size_in_bytes <= 16 * carry
    held = temporaries(jax.grad(partial(loss, of_ys=True), (0, 1)), *arguments)
    assert held <= 2 * whole + 16 * carry


def test_stacked_weights_are_not_copied() -> None:
    """A step's weights are read where they are. Their cotangents are computed in a buffer."""
    c, ws = jnp.ones((16, 128)), jnp.ones((50, 2, 128, 128))

    def loss(c: Any, ws: Any, **how: Any) -> Any:
        layer = lambda c, w: (c + jnp.tanh(c @ w[0]) @ w[1], None)  # noqa: E731
        return jnp.sum(checkpointed_scan(layer, c, ws, **how)[0] ** 2)

    for how in ({"checkpoints": 5}, {"checkpoints": 1, "inverse": lambda c, w, y: c}):
        held = temporaries(jax.grad(partial(loss, **how), (0, 1)), c, ws)
        assert held < 1.2 * ws[0].nbytes + 6 * c.nbytes


def test_hessian_vector_products_do_not_grow_with_the_length() -> None:
    """Reverse over reverse; the other two are beside the rules of any order."""

    def held(scan: Scan, length: int) -> int:
        gradient = jax.grad(stencil(scan, length))
        product = jax.grad(lambda u, v: jnp.vdot(gradient(u), v))
        return temporaries(product, state(1000), state(1000))

    ours = partial(checkpointed_scan, checkpoints=16)
    assert held(ours, 16384) <= min(4.1 * held(ours, 1024), held(lax.scan, 16384) / 40)


@pytest.mark.parametrize("options", [{}, {"checkpoints": 5, "block_size": 10}], ids=str)
def test_hessian_vector_products_hold_no_unused_ys(options: Any) -> None:
    """They held all ys and their tangents, which made them 10 to 22 times as large."""

    def product(with_ys: bool) -> Callable[..., Any]:
        def step(u: Any, _: Any) -> Any:
            u, _ = stencil_step(u, None)
            return u, u if with_ys else None

        grad = jax.grad(lambda u: jnp.sum(checkpointed_scan(step, u, None, 200, **options)[0] ** 2))
        return lambda u: jax.jvp(grad, (u,), (u,))[1]

    bare, with_ys = (temporaries(product(each), state(100)) for each in (False, True))
    assert with_ys <= 1.05 * bare


def test_program_of_single_steps_has_one_size_for_all_lengths_and_checkpoints() -> None:
    counts = []
    for n, s in [(10**2, 10), (997, 10), (10**6, 200)]:
        scan = partial(checkpointed_scan, checkpoints=s)
        text = compiled(jax.grad(stencil(scan, n)), state(100)).as_text()
        counts.append(instructions(text))
        shapes = re.findall(r" = \w+\[([\d,]*)\]\S* constant\(", text)
        largest = max(math.prod(int(d) for d in shape.split(",") if d) for shape in shapes)
        # The largest is the table of splits: three numbers per checkpoint and repetition.
        assert largest <= 3 * s * plan(n + 1, s).repetitions
    assert max(counts) - min(counts) < 10, counts  # XLA adds up longer tables in two steps


def test_slots_are_updated_in_place() -> None:
    """No copy, select, convert or gather of the whole slot buffer, but its initialization."""
    scan = partial(checkpointed_scan, checkpoints=13)
    text = compiled(jax.grad(stencil(scan, 1000)), state()).as_text()
    made = re.findall(r"= f32\[12,20000\]\S* ([\w-]+)\(", text)
    allowed = {"parameter", "get-tuple-element", "broadcast", "fusion", "dynamic-update-slice"}
    assert set(made) <= allowed | {"while", "bitcast"}
    assert made.count("broadcast") == 1


def test_evaluation_compiles_to_what_lax_scan_compiles_to() -> None:
    def text(scan: Scan) -> str:
        hlo = compiled(stencil(scan, 1000), state()).as_text()
        hlo = hlo[hlo.index("ENTRY") :]
        return re.sub(r", metadata=\{[^}]*\}|stack_frame_id=\d+|(?<=[a-z])[._]\d+|%\S+", "", hlo)

    assert text(checkpointed_scan) == text(lax.scan)


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_no_step_copies_the_slots_or_their_positions(loop: str) -> None:
    """Here the positions of 50 slots are more than the carry, of 10 numbers."""
    scan = stencil(partial(checkpointed_scan, checkpoints=50), 3000)
    fun, arguments = (scan, ()) if loop == "scan" else (while_stencil(50), (LIMIT,))
    text = compiled(jax.grad(fun), state(10), *arguments).as_text()
    copied = re.findall(r"= \w+\[(\d*)[\d,]*\]\S* copy\(", text[: text.index("ENTRY")])
    assert copied
    assert not {"50", "49"} & set(copied)


def test_a_store_of_the_online_schedule_is_small() -> None:
    """However many checkpoints there are. XLA makes one kernel of a loop that accesses less than
    1024 bytes."""

    def accessed(checkpoints: int) -> float:
        placement = Placement(checkpoints, 10**6)
        store = jax.jit(placement.store, donate_argnums=0).lower(placement.begin())
        analysis = store.compile().cost_analysis()
        assert analysis is not None
        return analysis["bytes accessed"]

    assert accessed(1000) <= accessed(30) + 64 <= 800


def test_programs_of_while_loops() -> None:
    """Their size does not depend on the bound, and no schedule runs if every step has a slot."""

    def lowered(checkpoints: Any, max_steps: int) -> Any:
        return jax.jit(jax.grad(while_stencil(checkpoints, max_steps))).lower(state(100), LIMIT)

    small, large = (lowered(10, 2**bits).compile().as_text() for bits in (10, 30))
    assert instructions(small) == instructions(large)
    loops = [lowered(s, 64).as_text().count("stablehlo.while") for s in ("all", 63)]
    assert loops[0] == 2 < loops[1]


@pytest.mark.parametrize("inside", [True, False], ids=["vmap_of_grad", "grad_of_vmap"])
def test_a_batch_holds_the_checkpoints_of_every_example(inside: bool) -> None:
    """Slots are updated in place. Selects of states that are done take a few states more."""
    batch, checkpoints, loss = 4, 20, while_stencil(20)
    of_all = lambda u, limits: jnp.sum(jax.vmap(loss)(u, limits))  # noqa: E731
    gradient = jax.vmap(jax.grad(loss)) if inside else jax.grad(of_all)
    arguments = (
        jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
    )
    program = compiled(gradient, *arguments)
    held = program.memory_analysis().temp_size_in_bytes
    assert held <= (checkpoints + 7) * batch * CARRY_BYTES
    made = re.findall(
        rf"= f32\[[\d,]*{checkpoints - 1},[\d,]*{WIDTH}\]\S* (\w+)\(", program.as_text()
    )
    assert not {"select", "conditional"} & set(made)


def trajectory(loop: str, length: int, checkpoints: int, x: Any, steps: Any) -> Any:
    """A number made of the entries of trajectories, which are written as the loop runs."""

    def body(carry: Any) -> Any:
        i, x, trajectory, sums = carry
        x = jnp.sin(x)
        write = lax.dynamic_update_index_in_dim
        return i + 1, x, trajectory.at[i].set(x), write(sums, jnp.stack([x, x**2]), i, 0)

    entries = (jnp.zeros((length, *n, *x.shape), x.dtype) for n in ((), (2,)))
    carry = (jnp.int32(0), x, *entries)
    if loop == "scan":
        step = lambda carry, _: (body(carry), None)  # noqa: E731
        carry, _ = checkpointed_scan(step, carry, None, length, checkpoints=checkpoints)
    else:
        run = partial(bounded_while_loop, max_steps=length, checkpoints=checkpoints)
        carry = run(lambda c: c[0] < steps, body, carry)
    return jnp.sum(jnp.cos(carry[2])) + jnp.sum(jnp.cos(carry[3]))


@pytest.mark.parametrize(("loop", "checkpoints"), [("scan", 50), ("while", 2)])
def test_arrays_that_are_only_written_are_not_stored(loop: str, checkpoints: int) -> None:
    """Trajectories of 120 MB beside a state of 4 kB."""
    length, width = 10000, 1000
    gradient = jax.grad(partial(trajectory, loop, length, checkpoints))
    held = temporaries(gradient, state(width), LIMIT)
    assert held <= 4 * width * (2 * 3 * length + checkpoints + 10)


def along(loss: Any) -> Any:
    return lambda x, steps: jax.jvp(lambda x: loss(x, steps), (x,), (x,))


@pytest.mark.parametrize(
    ("loop", "transform", "batched"),
    [
        *(("while", along, True), ("while", jax.grad, True), ("scan", jax.grad, False)),
        pytest.param("scan", along, True, marks=pytest.mark.slow),
        pytest.param("scan", jax.grad, True, marks=pytest.mark.slow),
    ],
)
def test_arrays_are_written_in_place(loop: str, transform: Any, batched: bool) -> None:
    """No loop copies, adds or selects a whole array to change one entry: it would take quadratic
    time. Examples that are done are no exception, nor are cotangents."""
    fun, shape = transform(partial(trajectory, loop, WIDTH, 3)), (2,) if batched else ()
    x, steps = (jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.float32, jnp.int32))
    text = compiled(jax.vmap(fun) if batched else fun, x, steps).as_text()
    before_main, _, _ = text.partition("\nENTRY ")
    made = set(re.findall(rf"= f32\[(?:2,)?{WIDTH}(?:,2)?\]\S* ([\w-]+)\(", before_main))
    assert {"scatter", "dynamic-update-slice"} & made
    assert not {"copy", "select", "add"} & made


@pytest.mark.parametrize(
    ("loop", "derivative"),
    [("slots", "gradient"), ("blocks", "product"), ("while", "of_examples")],
)
def test_an_array_that_the_step_closes_over_is_in_the_program_once(
    loop: str, derivative: str
) -> None:
    """XLA puts a copy of a constant into each loop: two for `lax.scan`, five and more for ours."""
    weights = jnp.linspace(-1.0, 1, 150 * 150).reshape(150, 150)

    def loss(weights: Any, x: Any) -> Any:
        step = lambda c, _: (jnp.sin(weights @ c), None)  # noqa: E731
        if loop == "while":
            return jnp.sum(repeat(lambda c: step(c, None)[0], 15, x, max_steps=20, checkpoints=3))
        size = 3 if loop == "blocks" else 1
        return jnp.sum(checkpointed_scan(step, x, length=20, checkpoints=3, block_size=size)[0])

    def derived(weights: Any, x: Any) -> Any:
        gradient = jax.grad(partial(loss, weights))
        if derivative == "product":
            return jax.jvp(gradient, (x,), (x,))
        return (
            jax.vmap(gradient)(jnp.stack([x, -x])) if derivative == "of_examples" else gradient(x)
        )

    x = jnp.ones(150)
    program = compiled(partial(derived, weights), x)
    assert len(re.findall(r"f32\[150,150\]\S* constant\(", program.as_text())) == 1
    as_argument = temporaries(derived, weights, x)
    assert program.memory_analysis().temp_size_in_bytes <= as_argument + 1000
