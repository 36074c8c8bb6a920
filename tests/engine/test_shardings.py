"""Loops on several devices: as on a single one, and with no more between the devices than JAX's."""

import re
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.asked import explained_scan
from support.record import Record
from support.sharded_programs import (
    AUTO,
    EXPLICIT,
    LOOPS,
    SETTINGS,
    arrays,
    as_while,
    derivatives,
    program,
)

from jax_revolve import (
    HostMemory,
    bounded_while_loop,
    checkpointed_fori_loop,
    checkpointed_scan,
    plan,
)

pytestmark = pytest.mark.usefixtures("default_precision")

quickly = pytest.mark.usefixtures("compile_quickly")


@cache
def _expected(derivative: str) -> Any:
    """`lax.scan`'s, on a single device."""
    return jax.jit(derivatives(program(lax.scan))[derivative])(*arrays())


def _assert_close(ours: Any, theirs: Any) -> None:
    def check(a: Any, b: Any) -> None:
        # Sums of another order round differently, by a fraction of the largest of their terms.
        atol = 2e-5 * max(1.0, float(np.max(np.abs(b))))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=atol)

    jax.tree.map(check, ours, theirs)


IN_EVERY_RUN = {
    ("auto", "scan", "grad"),
    ("constrained", "scan", "forward_over_reverse"),
    ("explicit", "blocks", "grad"),
    ("shard_map", "while", "grad"),
    ("shard_map_over_one_axis", "scan", "reverse_over_reverse"),
    ("vmap_over_devices", "while", "jvp"),
    ("vmap_over_devices", "while_in_blocks", "grad"),
    ("pmap", "scan", "grad"),
}
DERIVATIVES = ("grad", "jvp", "forward_over_reverse", "reverse_over_reverse")
IN_SLOW_RUN = {
    (setting, loop, DERIVATIVES[(i + j) % 4])
    for i, setting in enumerate(SETTINGS)
    for j, loop in enumerate(LOOPS)
}
"""Each two of setting, loop and derivative meet."""
TRIPLES = [
    pytest.param(*triple, marks=[] if triple in IN_EVERY_RUN else pytest.mark.slow)
    for triple in sorted(IN_EVERY_RUN | IN_SLOW_RUN)
]


@quickly
@pytest.mark.parametrize(("setting", "loop", "derivative"), TRIPLES)
def test_derivatives_are_those_of_a_single_device(setting: str, loop: str, derivative: str) -> None:
    how = SETTINGS[setting]
    with how.mesh_set():
        fun = derivatives(how.program(LOOPS[loop]))[derivative]
        _assert_close(jax.jit(fun)(*how.put(arrays())), _expected(derivative))


def test_an_error_at_the_bound_needs_all_axes() -> None:
    def loss(x: Any) -> Any:
        return bounded_while_loop(lambda x: jnp.all(x < 3), lambda x: x + 1, x, max_steps=5)

    def over(axes: set[str]) -> Any:
        spec = P(*sorted(axes))
        return jax.shard_map(loss, mesh=AUTO, in_specs=spec, out_specs=spec, axis_names=axes)

    np.testing.assert_array_equal(jax.jit(over({"data", "model"}))(jnp.zeros((4, 2))), 3)
    with pytest.raises(NotImplementedError, match=r"maps over the axes \('data',\) and leaves"):
        jax.jit(over({"data"}))(jnp.zeros((4, 2)))


# What the compiled program holds on each device, and what devices tell each other

SLOTS, BLOCK, BATCH, WIDTH = 5, 3, 11, 14
"""Batch and width are those of each device."""

COMPILED = {
    "scan": partial(checkpointed_scan, checkpoints=SLOTS + 1),
    "blocks": partial(checkpointed_scan, checkpoints=SLOTS + 1, block_size=BLOCK),
    "while": as_while(checkpoints=SLOTS + 1),
    "while_in_blocks": as_while(checkpoints=SLOTS + 1, block_size=BLOCK),
}


@cache
def _gradient(setting: str, scan: Any, batch: int, width: int) -> str:
    """The compiled program of a gradient on eight devices."""
    how, values = SETTINGS[setting], arrays(7 * BLOCK, 4 * batch, 2 * width)
    with how.mesh_set():
        gradient = derivatives(how.program(scan))["grad"]
        return jax.jit(gradient).lower(*how.put(values)).compile().as_text() or ""


def _shapes(text: str) -> set[tuple[int, ...]]:
    return {tuple(map(int, s.split(","))) for s in re.findall(r"\bf32\[([\d,]+)\]", text)}


def _collectives(text: str) -> set[tuple[str, tuple[int, ...]]]:
    """Their kinds, each with the shapes of its results, in whatever loop they are. What a block's
    steps say at once, which is said of a tape, counts as what each of them says."""
    kinds = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
    calls = re.findall(rf"= (\(?\w+\[.*?) ({kinds})(?:-start)?\(", text)
    shapes = {(kind, shape) for types, kind in calls for shape in _shapes(types)}
    return {(k, s[1:] if len(s) > 2 and s[0] == BLOCK else s) for k, s in shapes}


@pytest.mark.parametrize(
    ("setting", "loop"),
    [
        *(("auto", "scan"), ("auto", "while_in_blocks")),
        *(
            pytest.param(setting, loop, marks=pytest.mark.slow)
            for setting in ("explicit", "shard_map")
            for loop in ("blocks", "while")
        ),
    ],
)
def test_slots_are_divided_as_the_carry_and_devices_say_no_more_than_in_a_scan(
    setting: str, loop: str
) -> None:
    text = _gradient(setting, COMPILED[loop], BATCH, WIDTH)
    buffers = {shape for shape in _shapes(text) if len(shape) > 2}
    assert {shape[1:] for shape in buffers if shape[0] == SLOTS} == {(BATCH, WIDTH)}
    assert max(shape[1] for shape in buffers) == BATCH
    assert _collectives(text) <= _collectives(_gradient(setting, lax.scan, BATCH, WIDTH))


def test_a_block_of_a_large_weight_is_not_gathered_on_every_device() -> None:
    """Its cotangent is one product over the steps and the batch. To make a single axis of the two,
    each device would need the whole batch."""
    text = _gradient("auto", COMPILED["blocks"], 4, 128)
    assert f"f32[{BLOCK},4,128]" in text
    assert _collectives(text) <= _collectives(_gradient("auto", lax.scan, 4, 128))


# What else a program on several devices may be made of


def divided(x: Any, *axes: Any) -> jax.Array:
    return jax.device_put(x, NamedSharding(EXPLICIT, P(*axes)))


def _same(make: Callable[[Any], Any], *arguments: Any, **options: Any) -> Any:
    """What `make(scan)` returns, compiled, which is the same as with `lax.scan`."""
    ours = jax.jit(make(partial(checkpointed_scan, **{"checkpoints": 2, **options})))(*arguments)
    _assert_close(ours, jax.jit(make(lax.scan))(*arguments))
    return ours


@quickly
def test_keys_in_a_divided_carry() -> None:
    """The buffer for ys that are keys has to be divided as they are."""

    def gradient(scan: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            h, keys = carry
            noise = jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys)
            return (jnp.sin(h + noise), jax.vmap(jax.random.fold_in)(keys, ones)), keys

        def loss(h: Any, keys: Any) -> Any:
            (h, _), ys = scan(step, (h, keys), None, 7)
            return jnp.sum(h**2), jax.random.key_data(ys)

        return jax.grad(loss, has_aux=True)

    with jax.set_mesh(EXPLICIT):
        ones = divided(jnp.ones(8, jnp.int32), "data")
        keys = divided(jax.random.split(jax.random.key(0), 8), "data")
        _same(gradient, divided(arrays()[1], "data"), keys)


@quickly
def test_a_while_loop_stops_when_all_devices_say_so() -> None:
    def program(h: Any, total: Any = jnp.sum) -> Any:
        run = partial(bounded_while_loop, max_steps=30, checkpoints=2)
        h = run(lambda h: total(h**2) > 0.1, lambda h: jnp.sin(h) * total(h**2) / 40, h)
        return total(h)

    h = arrays()[1]
    local = partial(program, total=lambda x: lax.psum(jnp.sum(x), "data"))
    on_all = jax.shard_map(local, mesh=AUTO, in_specs=P("data"), out_specs=P())
    along = lambda f: jax.jit(lambda h: jax.jvp(jax.grad(f), (h,), (jnp.cos(h),)))  # noqa: E731
    put = jax.device_put(h, NamedSharding(AUTO, P("data", "model")))
    _assert_close(along(on_all)(put), along(program)(h))


@pytest.mark.parametrize("spec", [P(), P("data", "model"), P(("data", "model"))])
def test_bytes_are_those_of_a_device_where_types_tell_the_sharding(spec: P) -> None:
    """As for arrays of the shape that a device holds, and so is the plan."""

    def sizes(shape: tuple[int, ...], **options: Any) -> Any:
        state = jax.ShapeDtypeStruct(shape, jnp.float32, **options)
        step = lambda u, x: (jnp.sin(u) * jnp.cos(u) + x, x)  # noqa: E731
        report = explained_scan(step, state, jnp.ones(200, jnp.float32), memory="200kB")
        return report.plan, report.sizes

    sharding = NamedSharding(EXPLICIT, spec)
    shape = (64, 32)
    with jax.set_mesh(EXPLICIT):
        found = sizes(shape, sharding=sharding)
    assert found == sizes(sharding.shard_shape(shape))
    with jax.set_mesh(AUTO):
        assert sizes(shape, sharding=NamedSharding(AUTO, spec)) == sizes(shape)


@quickly
def test_examples_that_are_divided_in_the_type() -> None:
    def gradient(scan: Any) -> Any:
        def one(w: Any, h: Any, xs: Any) -> Any:
            h, ys = scan(lambda h, x: (jnp.tanh(w @ h + x), h * x), h, xs)
            return jnp.sum(h**2) + jnp.sum(ys)

        return jax.vmap(jax.grad(one, (0, 1, 2)), (None, 0, 1))

    w, h, xs = arrays()
    with jax.set_mesh(EXPLICIT):
        values = divided(w), divided(h, "data"), divided(xs, None, "data")
        for each in _same(gradient, *values, block_size=2):
            assert each.sharding.spec[0] == "data"


@quickly
def test_second_derivatives_of_what_is_the_same_for_all_examples() -> None:
    """Its cotangent had no sharding along the examples, and `jax.vmap` refused it. Found by random
    program 3100114."""

    def gradient(scan: Any) -> Any:
        def one(w: Any, h: Any) -> Any:
            step = lambda c, _: ((jnp.sin(c[0] * w), jnp.cos(c[1]) * h), c[0])  # noqa: E731
            (u, v), us = scan(step, (w, h), None, length=3)
            return jnp.sum(u + v) + jnp.sum(us**2)

        def total(w: Any, h: Any) -> Any:
            gradients = jax.vmap(jax.grad(one, (0, 1)), (None, 0))(w, h)
            return sum(jnp.sum(jnp.sin(g)) for g in gradients)

        return jax.grad(total, (0, 1))

    w, h, _ = arrays()
    with jax.set_mesh(EXPLICIT):
        _same(gradient, w[0, : h.shape[1]], divided(h, "data"))


@quickly
def test_fori_loop_without_jit() -> None:
    def loss(loop: Any, h: Any) -> Any:
        return jnp.sum(loop(0, 5, lambda i, h: jnp.sin(h) * (1 + 0.1 * i), h) ** 2)

    h = divided(arrays()[1], "data", "model")
    with jax.set_mesh(EXPLICIT):
        gradient = jax.grad(partial(loss, checkpointed_fori_loop))(h)
    assert gradient.sharding == h.sharding
    _assert_close(gradient, jax.jit(jax.grad(partial(loss, lax.fori_loop)))(arrays()[1]))


def test_xs_that_are_divided_in_time_are_refused_as_lax_does() -> None:
    """Where the types tell; where the compiler divides them it is one of the settings above."""
    w, h, xs = arrays()

    def message(scan: Any) -> str:
        run = jax.jit(lambda xs: scan(lambda h, x: (jnp.tanh(h @ w + x), None), h, xs))
        with jax.set_mesh(EXPLICIT), pytest.raises(ValueError, match="xs should be") as error:
            run(divided(xs, "data"))
        return str(error.value)

    assert message(checkpointed_scan) == message(lax.scan)


@quickly
@pytest.mark.parametrize(
    ("derivative", "options"),
    [("grad", {"checkpoints": 2, "block_size": 3}), ("forward_over_reverse", {"checkpoints": 3})],
)
def test_a_carry_without_a_mesh_beside_xs_that_have_one(
    derivative: str, options: dict[str, Any]
) -> None:
    """`lax.scan` takes such a carry for one of the type that the step returns. Slots, made of the
    initial carry, did not hold the later ones."""
    weights, init, xs = arrays()

    def fun(scan: Any) -> Any:
        def loss(weights: Any, init: Any, xs: Any) -> Any:
            return jnp.sum(scan(lambda c, x: (jnp.tanh(c @ weights) + x, None), init, xs)[0])

        return derivatives(loss)[derivative]

    _same(fun, weights, init, divided(xs, None, "data"), **options)


def test_weights_that_are_reduced_over_a_mesh() -> None:
    """Their cotangents are sums that are still to be taken over the devices."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))

    def loss(scan: Any, weights: Any, x: Any) -> Any:
        return jnp.sum(jnp.sin(scan(lambda u, w: (jnp.tanh(u @ w), None), x, weights)[0]))

    def derivatives(scan: Any, weights: Any, x: Any) -> Any:
        grad = jax.grad(partial(loss, scan))
        return jax.jvp(lambda w: grad(w, x), (weights,), (weights,))

    with jax.set_mesh(mesh):
        weights = jax.device_put(
            jnp.linspace(0.0, 1, 48).reshape(3, 4, 4), P(reduced=frozenset("x"))
        )
        x = jax.device_put(jnp.linspace(-1.0, 1, 16).reshape(4, 4), P("x", None))
        scans = checkpointed_scan, lax.scan
        ours, theirs = (jax.jit(partial(derivatives, scan))(weights, x) for scan in scans)
        assert [*map(jax.typeof, ours)] == [*map(jax.typeof, theirs)]
        _assert_close(*(jax.reshard(both, P()) for both in (ours, theirs)))


@quickly
@pytest.mark.parametrize("options", [{}, {"block_size": 2}, {"storage": HostMemory()}], ids=str)
def test_examples_with_weights_that_are_reduced_over_a_mesh(options: dict[str, Any]) -> None:
    """JAX refuses to write into a batch of such arrays, and to make one where a loop needs it."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))

    def derivatives(scan: Any) -> Any:
        def loss(ws: Any, x: Any) -> Any:
            step = lambda x, w: (jnp.sin(jnp.dot(x, w, out_sharding=P("x"))), x)  # noqa: E731
            x, ys = scan(step, x, ws)
            return jnp.sum(x**2) + jnp.sum(ys)

        gradient = jax.value_and_grad(loss)
        along = lambda ws, x: jax.jvp(partial(gradient, ws), (x,), (x,))  # noqa: E731
        return jax.jit(jax.vmap(along, (None, 0)))

    with jax.set_mesh(mesh):
        ws = jax.device_put(jnp.linspace(0.0, 1, 48).reshape(3, 4, 4), P(reduced=frozenset("x")))
        xs = jax.device_put(jnp.linspace(-1.0, 1, 32).reshape(2, 4, 4), P(None, "x"))
        scans = partial(checkpointed_scan, **options), lax.scan
        ours, theirs = (derivatives(scan)(ws, xs) for scan in scans)
        assert jax.tree.map(jax.typeof, ours) == jax.tree.map(jax.typeof, theirs)
        _assert_close(*(jax.reshard(both, P()) for both in (ours, theirs)))


@pytest.mark.parametrize(
    "where",
    [
        *("step", "closure", "rule"),
        *(pytest.param(where, marks=pytest.mark.slow) for where in ("jit", "cond", "scan")),
    ],
)
@pytest.mark.parametrize("options", [{"block_size": 2}, {"checkpoints": 2}], ids=str)
def test_functions_whose_mesh_has_other_axes(where: str, options: dict[str, Any]) -> None:
    """They were refused, as was one that closes over a value without a mesh."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    auto_axes: Any = partial(jax.sharding.auto_axes, out_sharding=P())

    def product(p: Any, u: Any) -> Any:
        if where == "closure":
            return auto_axes(lambda u: jnp.sin(u) * p * u)(u)
        inside = auto_axes(lambda p, u: jnp.sin(u) * p * u)
        if where == "jit":
            return jax.jit(inside)(p, u)
        if where == "rule":
            ruled = jax.custom_jvp(inside)
            ruled.defjvp(lambda primals, dots: jax.jvp(inside, primals, dots))
            return ruled(p, u)
        if where == "cond":
            return lax.cond(u > 0, inside, lambda p, u: jax.reshard(p * u, P()), p, u)
        if where == "scan":
            return lax.scan(lambda u, _: (inside(p, u), None), u, length=2)[0]
        return inside(p, u)

    def derivatives(scan: Any) -> Any:
        def run(p: Any) -> Any:
            return scan(lambda u, _: (product(p, jnp.cos(u)), u * u), 2.0, length=5)[0]

        # Errors in lax: reverse mode over reverse mode, and second derivatives of a scan inside.
        orders = [run, jax.grad(run), jax.jacfwd(jax.grad(run))][: 2 if where == "scan" else 3]
        return [jax.jit(order)(1.5) for order in orders]

    with jax.set_mesh(mesh):
        ours = derivatives(partial(checkpointed_scan, **options))
        rtol = 1e-6 if where == "cond" else 1e-7
        np.testing.assert_allclose(ours, derivatives(lax.scan), rtol=rtol)


# JAX's switch to types that the user casts


def _cast(scan: Any, w: Any, h: Any, xs: Any) -> Any:
    """A program that needs no `jax_auto_pcast`."""
    axes = EXPLICIT.axis_names

    def local(w: Any, h: Any, xs: Any) -> Any:
        w = lax.pcast(w, axes, to="varying")

        def step(h: Any, x: Any) -> Any:
            h = jnp.sin(h @ w + x)
            return h * lax.pcast(jnp.cos(lax.psum(jnp.sum(h), axes)), axes, to="varying"), h * x

        h, ys = scan(step, h, xs)
        return lax.psum(jnp.sum(h * h) + jnp.sum(ys), axes)

    rows = P(axes), P(None, axes)
    return jax.shard_map(local, mesh=EXPLICIT, in_specs=(P(), *rows), out_specs=P())(w, h, xs)


CAST = {
    "default": checkpointed_scan,
    "slots": partial(checkpointed_scan, checkpoints=2),
    "blocks": partial(checkpointed_scan, checkpoints=2, block_size=2),
    "levels": partial(checkpointed_scan, plan=plan(8, levels=(3, 3))),
    "memory": partial(checkpointed_scan, memory="2kB"),
    "host": partial(checkpointed_scan, checkpoints=2, storage=HostMemory()),
    "progress": partial(checkpointed_scan, progress=Record()),
    "while": as_while(),
    "while_in_blocks": as_while(checkpoints=2, block_size=2),
    "while_with_progress": as_while(progress=Record()),
}
IN_EVERY_CAST_RUN = {
    ("blocks", "grad"),
    ("slots", "forward_over_reverse"),
    ("default", "reverse_over_reverse"),
    ("while", "grad"),
    ("while_in_blocks", "grad_of_examples"),
}


@quickly
@pytest.mark.skipif(
    jax.__version_info__ < (0, 12), reason="JAX 0.10 refuses the indices of lax.scan itself"
)
@pytest.mark.parametrize("is_on", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("loop", "derivative"),
    [
        pytest.param(
            *pair,
            marks=[]
            if pair in IN_EVERY_CAST_RUN
            else (pytest.mark.slow, pytest.mark.exhaustive)[number % 2],
        )
        for number, pair in enumerate(product(CAST, [*DERIVATIVES, "grad_of_examples"]))
    ],
)
def test_programs_that_cast_what_varies(loop: str, derivative: str, is_on: bool) -> None:
    """Some of our constants did not vary, and JAX's rules make such constants in our programs."""

    def run(scan: Any) -> Any:
        loss = partial(_cast, scan)
        if derivative == "grad_of_examples":
            in_axes = None, 0, None
            return jax.jit(jax.vmap(derivatives(loss)["grad"], in_axes))(w, jnp.stack([h, -h]), xs)
        return jax.jit(derivatives(loss)[derivative])(w, h, xs)

    w, h, xs = arrays()
    with jax.set_mesh(EXPLICIT), jax.auto_pcast(is_on):
        axes = EXPLICIT.axis_names
        w, h, xs = divided(w), divided(h, axes), divided(xs, None, axes)
        _assert_close(run(CAST[loop]), run(lax.scan))


def test_a_single_checkpoint_in_a_shard_map() -> None:
    """The compiler of jaxlib 0.11 crashed, because the slots beyond it were an empty array."""

    def own(x: Any, **options: Any) -> Any:
        step = lambda x: 1.5 * jnp.sin(x)  # noqa: E731
        return bounded_while_loop(lambda x: jnp.sum(x) < 1, step, x, max_steps=9, **options)

    def total(x: Any, **options: Any) -> Any:
        run = partial(own, **options)
        return jnp.sum(jax.shard_map(run, mesh=AUTO, in_specs=P("data"), out_specs=P("data"))(x))

    x = jnp.linspace(0.1, 0.4, 4)
    one, several = (jax.jit(jax.grad(partial(total, checkpoints=s)))(x) for s in (1, 3))
    np.testing.assert_array_equal(one, several)
