"""Chains of layers, against the plain model: `equinox.nn.Sequential`, or a loop over the layers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.layers import Block
from support.oracles import assert_close, with_reverse_rule

from jax_revolve import checkpointed_chain, checkpointed_scan
from jax_revolve.layers.layer import Layer
from jax_revolve.schedule import binomial
from jax_revolve.schedule.arguments import TooLittleMemory

KEY = jax.random.key(7)

quick = pytest.mark.usefixtures("compile_quickly")


def unlike_layers() -> list[Any]:
    """Widths that change, dropout, a bare function with a key, and one without."""
    noise = lambda x, key: x * (1 + 0.1 * jax.random.normal(key, x.shape))  # noqa: E731
    first, last = eqx.nn.Linear(4, 16, key=KEY), eqx.nn.Linear(16, 3, key=KEY)
    return [first, eqx.nn.Dropout(0.3), jnp.tanh, noise, eqx.nn.LayerNorm(16), last]


def plain(layers: Sequence[Any], x: Any, *, key: Any = None) -> Any:
    keys = [None] * len(layers) if key is None else jax.random.split(key, len(layers))
    for layer, k in zip(layers, keys, strict=True):
        x = layer(x, key=k) if k is not None and Layer.of(0, layer).takes_key else layer(x)
    return x


def loss_of(run: Callable[..., Any], layers: Any) -> tuple[Callable[..., Any], Any]:
    """A loss, and the weights and input that it is a function of."""
    weights, rest = eqx.partition(layers, eqx.is_inexact_array)

    def loss(inputs: Any) -> Any:
        weights, x = inputs
        return jnp.sum(run(eqx.combine(weights, rest), x, key=KEY) ** 2)

    return loss, (weights, jnp.linspace(-1.0, 1.0, 4))


def along(f: Any) -> Any:
    return lambda u: jax.jvp(f, (u,), (u,))


def scaled(f: Any) -> Any:
    return lambda u: jax.vmap(lambda factor: f((u[0], factor * u[1])))(jnp.arange(3.0))


def squares(f: Any) -> Any:
    return lambda u: sum(jnp.sum(x**2) for x in jax.tree.leaves(f(u)))


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "default": (jax.value_and_grad, {}),
    "little memory": (jax.grad, {"memory": "1kB"}),
    "much memory": (jax.grad, {"memory": "1GB"}),
    "jvp": (along, {}),
    "vmap of grad": (lambda f: scaled(jax.grad(f)), {"checkpoints": 2}),
    "forward over reverse": (lambda f: along(jax.grad(f)), {"checkpoints": 2}),
    "reverse over reverse": (lambda f: jax.grad(squares(jax.grad(f))), {"checkpoints": 1}),
}


@pytest.mark.parametrize("name", CASES)
@quick
def test_derivatives(name: str) -> None:
    transform, options = CASES[name]
    ours, inputs = loss_of(partial(checkpointed_chain, **options), unlike_layers())
    theirs, _ = loss_of(plain, unlike_layers())
    ours, theirs = (jax.jit(transform(f))(inputs) for f in (ours, theirs))
    assert_close(ours, theirs, 1e-10)


@quick
def test_layers_without_jit_of_any_pytrees_with_rules() -> None:
    """Integers, names, and a reverse rule whose gradient has a forward derivative."""

    sine = with_reverse_rule(jnp.sin, lambda x, ct: 2 * jnp.cos(x) * ct)
    layers: list[Any] = [
        lambda x: {"count": jnp.int32(2), "name": "a", "u": x},
        lambda t: {**t, "count": t["count"] + 1, "u": sine(t["u"])},
        lambda t: {**t, "name": t["name"] + "b", "none": None},
        lambda t: (t["u"] * t["count"], t["name"]),
    ]
    run = partial(checkpointed_chain, layers, checkpoints=2)
    assert run(0.3)[1] == "ab"
    assert_close(jax.jit(jax.jacfwd(jax.grad(lambda x: run(x)[0])))(0.3), -6 * jnp.sin(0.3))
    with jax.disable_jit():
        assert_close(jax.grad(lambda x: run(x)[0])(0.3), 6 * jnp.cos(0.3))


# State


@quick
def test_layers_whose_settings_are_equal_but_not_the_same() -> None:
    class Times(eqx.Module):
        by: Any = eqx.field(static=True)

        def __call__(self, x: Any) -> Any:
            return x * self.by

    for first, second in ((2, 2.0), (1, True), (-0.0, 0.0)):
        layers = [Times(first), Times(second)]
        ours, theirs = checkpointed_chain(layers, jnp.int32(3)), plain(layers, jnp.int32(3))
        assert (ours.dtype, str(ours)) == (theirs.dtype, str(theirs))


def test_batch_norm_under_vmap() -> None:
    def make() -> eqx.nn.Sequential:
        layers: list[Any] = []
        for key, mode in zip(jax.random.split(jax.random.key(1)), ("batch", "ema"), strict=True):
            norm: Any = eqx.nn.BatchNorm(6, axis_name="batch", mode=mode, momentum=0.9)  # pyright: ignore
            layers += [eqx.nn.Linear(6, 6, key=key), norm, eqx.nn.Lambda(jnp.tanh)]
        return eqx.nn.Sequential([*layers, eqx.nn.Dropout(0.2)])

    model, state = eqx.nn.make_with_state(make)()
    xs, keys = jax.random.normal(KEY, (5, 6)), jax.random.split(KEY, 5)

    @eqx.filter_jit
    def step(state: Any, run: Any) -> Any:
        @partial(eqx.filter_grad, has_aux=True)
        def loss(model: Any) -> Any:
            call = lambda x, key: run(model, x, key=key, state=state)  # noqa: E731
            out, new = jax.vmap(call, axis_name="batch", out_axes=(0, None))(xs, keys)
            return jnp.sum(out**2), new

        return loss(model)

    ours = theirs = None, state
    for _ in range(2):
        ours = step(ours[1], partial(checkpointed_chain, checkpoints=2))
        theirs = step(theirs[1], lambda model, x, **how: model(x, **how))
        assert_close(ours, theirs, 1e-11)


class Counter(eqx.nn.StatefulLayer):
    """Counts its calls, and adds their number."""

    index: eqx.nn.StateIndex

    def __init__(self) -> None:
        self.index = eqx.nn.StateIndex(jnp.array(0.0))

    def __call__(self, x: Any, state: Any, *, key: Any = None) -> Any:
        count = state.get(self.index) + 1
        return jnp.sin(x) + count, state.set(self.index, count)


@quick
def test_a_layer_that_is_used_twice_has_one_state() -> None:
    counter, state = eqx.nn.make_with_state(Counter)()
    layers = [counter, jnp.tanh, counter, counter]
    loss = partial(checkpointed_chain, layers, checkpoints=1, state=state)
    gradient, new = jax.jit(jax.grad(loss, has_aux=True))(0.5)
    assert new.get(counter.index) == 3
    by_hand = lambda x: jnp.sin(jnp.sin(jnp.tanh(jnp.sin(x) + 1)) + 2) + 3  # noqa: E731
    assert_close(gradient, jax.grad(by_hand)(0.5))


# Stacks


@quick
def test_stack() -> None:
    keys = jax.random.split(jax.random.key(3), 7)
    stack, x = eqx.filter_jit(eqx.filter_vmap(Block))(keys), jnp.arange(4.0)
    ours = partial(checkpointed_chain, key=KEY)

    def theirs(stack: Any, x: Any) -> Any:
        arrays, rest = eqx.partition(stack, eqx.is_array)
        layers = [eqx.combine(jax.tree.map(lambda a, i=i: a[i], arrays), rest) for i in range(7)]
        return plain(layers, x, key=KEY)

    def loss(stack: Any, run: Any) -> Any:
        result = run(stack, x)
        return jnp.sum(result**2), result

    gradient = eqx.filter_jit(eqx.filter_grad(loss, has_aux=True))
    assert_close(gradient(stack, ours), gradient(stack, theirs))


@quick
def test_stack_with_state() -> None:
    make = eqx.filter_vmap(lambda _: eqx.nn.make_with_state(Counter)(), axis_size=5)
    stack, state = make(None)
    ours = partial(checkpointed_chain, stack, checkpoints=2, state=state)
    gradient, new = jax.jit(jax.grad(ours, has_aux=True))(0.5)
    np.testing.assert_array_equal(new.get(stack.index), jnp.ones(5))
    theirs = partial(plain, [lambda x: jnp.sin(x) + 1] * 5)
    assert_close(gradient, jax.grad(theirs)(0.5))


# Memory, evaluations, traces


def test_compiled_gradients_keep_to_the_budget() -> None:
    keys, x = jax.random.split(KEY, 12), jnp.ones((512, 64), jnp.float32)
    layers = [eqx.nn.MLP(64, 64, 256, 1, key=k, dtype=jnp.float32) for k in keys]

    def temporaries(run: Callable[..., Any], count: int = 12) -> int:
        gradient = eqx.filter_jit(eqx.filter_grad(lambda layers: jnp.sum(run(layers, x) ** 2)))
        many = [eqx.filter_vmap(layer) for layer in layers[:count]]
        return gradient.lower(many).compile().compiled.memory_analysis().temp_size_in_bytes  # pyright: ignore

    memory = int(0.2 * temporaries(plain))
    held = temporaries(partial(checkpointed_chain, memory=memory))
    assert held <= memory + temporaries(plain, 1) + 2 * x.nbytes


@pytest.mark.parametrize(("count", "checkpoints"), [(1, 1), (9, 3), (7, "all")])
def test_layers_run_as_often_as_the_schedule_says(count: int, checkpoints: Any) -> None:
    executed: list[int] = []

    def layer(x: Any, i: int) -> Any:
        jax.debug.callback(lambda: executed.append(i), ordered=False)
        return jnp.sin(x)

    layers = [partial(layer, i=i) for i in range(count)]
    loss = partial(checkpointed_chain, layers, checkpoints=checkpoints)

    def executions(fun: Any) -> int:
        executed.clear()
        jax.block_until_ready(jax.jit(fun)(0.3))
        jax.effects_barrier()
        return len(executed)

    slots = count if checkpoints == "all" else checkpoints
    assert executions(jax.value_and_grad(loss)) == count + binomial.advances(count, slots)
    assert executions(loss) == count
    assert executions(lambda x: jax.jvp(loss, (x,), (x,))) == count


@quick
def test_layers_are_traced_once() -> None:
    traces = []

    class Counted(eqx.Module):
        weight: Any

        def __call__(self, x: Any) -> Any:
            traces.append(x)
            return jnp.tanh(self.weight * x)

    layers = [Counted(jnp.float32(i)) for i in range(30)]
    eqx.filter_jit(eqx.filter_grad(lambda layers: checkpointed_chain(layers, 0.5)))(layers)
    assert len(traces) == 30


def test_programs_of_nested_segments_are_small() -> None:
    """They once doubled with each level. Twenty-one layers with one checkpoint have twenty."""

    def equations(jaxpr: Any) -> int:
        inner = [p for eqn in jaxpr.eqns for p in jax.tree.leaves(list(eqn.params.values()))]
        inner = [getattr(p, "jaxpr", p) for p in inner]
        return len(jaxpr.eqns) + sum(equations(p) for p in inner if hasattr(p, "eqns"))

    run = partial(checkpointed_chain, [jnp.sin] * 21, checkpoints=1)
    gradient = jax.make_jaxpr(jax.grad(lambda x: jnp.sum(run(x))))(jnp.ones(3))
    assert equations(gradient.jaxpr) < 20 * 21**2


def test_a_chain_that_is_too_long_for_its_checkpoints_is_refused() -> None:
    layers = [jnp.sin, jnp.tanh] * 150
    message = "checkpoints must be more for these 300 layers, but is 1: a layer would run 300 times"
    with pytest.raises(ValueError, match=f"{message}.* About 2 checkpoints are enough"):
        checkpointed_chain(layers, jnp.ones(3), checkpoints=1)
    checkpointed_chain(layers, jnp.ones(3), checkpoints=2)


def test_jacobians_of_jacobians() -> None:
    """JAX could not linearize the rule that pullbacks once had."""
    layers = [jnp.sin, jnp.tanh, jnp.exp]
    twice = lambda f: jax.jacrev(jax.jacrev(f))  # noqa: E731
    ours = twice(lambda x: checkpointed_chain(layers, x, checkpoints=1).sum())(jnp.ones(2))
    assert_close(ours, twice(lambda x: plain(layers, x).sum())(jnp.ones(2)))


@quick
def test_layers_that_are_the_same_program_are_compiled_as_one() -> None:
    """Not those that are nearly the same: constants, signs of zeros, types, rules."""
    layers = [eqx.nn.Lambda(jax.nn.gelu) for _ in range(9)]
    text = jax.jit(partial(checkpointed_chain, layers)).lower(jnp.ones(3)).as_text()
    assert text.count("tanh") < 5

    def ruled(by: float) -> Any:
        return with_reverse_rule(lambda x: x, lambda _, ct: by * ct)

    table = [np.full(3, by) for by in (1.0, 2.0)]
    unlike = [lambda x: x * 1.0, lambda x: x * 2.0, lambda x: x + 0.0, lambda x: x * -0.0 + x]
    unlike += [ruled(2.0), ruled(3.0), *(jax.jit(lambda x, t=t: x * t) for t in table)]
    for run in (lambda x: checkpointed_chain(unlike, x), lambda x: plain(unlike, x)):
        assert_close(
            jax.jit(jax.grad(lambda x, run=run: run(x).sum()))(jnp.ones(3)), 24 * jnp.ones(3)
        )


# What changes between two calls


FACTOR = 1.0


def test_what_a_layer_reads_may_change_between_calls() -> None:
    """A global, what a function closes over, and a setting: in all calls, compiled or not."""

    class Scaled(eqx.Module):
        by: dict[str, float] = eqx.field(static=True)

        def __call__(self, x: Any) -> Any:
            return x * self.by["factor"]

    closed_over, setting = [1.0], {"factor": 1.0}
    layers = [lambda x: x * FACTOR, lambda x: x * closed_over[0], Scaled(setting), jnp.sin]
    whole = lambda x: checkpointed_chain(layers, x, checkpoints=2)  # noqa: E731
    for factor in (1.0, 2.0, 3.0):
        globals()["FACTOR"], closed_over[0], setting["factor"] = factor, factor + 1, factor + 2
        product = factor * (factor + 1) * (factor + 2)
        for run in (whole, lambda x: jax.jit(lambda x: whole(x))(x)):
            assert_close(run(0.1), jnp.sin(product * 0.1))
            assert_close(jax.grad(run)(0.1), product * jnp.cos(product * 0.1))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, along])
@pytest.mark.parametrize("array", [jnp.array, np.array])
def test_layers_with_arrays_in_them(transform: Any, array: Any) -> None:
    layer = lambda x: jnp.sin(x) * array([1.0, 3.0, 6.0])  # noqa: E731
    chain = partial(checkpointed_chain, [layer, layer], checkpoints=1)
    ours, theirs = (
        jax.grad(lambda x, f=f: jnp.sum(f(x))) for f in (chain, partial(plain, [layer] * 2))
    )
    x = jnp.linspace(-1.0, 1.0, 3)
    assert_close(transform(ours)(x), transform(theirs)(x))


def test_layers_that_close_over_tracers() -> None:
    def scale(x: Any) -> Any:
        return x * current[0]

    current: list[Any] = [None]

    @jax.jit
    def gradient(weight: Any, x: Any) -> Any:
        def loss(weight: Any) -> Any:
            current[0] = weight
            return checkpointed_chain([scale, jnp.sin, scale], x, checkpoints=1)

        return jax.grad(loss)(weight)

    for x in (0.3, jnp.float64(0.3), jnp.ones(3)[0], np.float64(0.4)):
        assert_close(gradient(2.0, x), jax.grad(lambda w, x=x: w * jnp.sin(w * x))(2.0))


# Errors


LINEAR = eqx.nn.Linear(4, 3, key=KEY)
COUNTER, STATE = eqx.nn.make_with_state(Counter)()
UNEVEN = eqx.tree_at(
    lambda s: s.bias, eqx.filter_vmap(lambda k: eqx.nn.Linear(4, 3, key=k))(KEY[None]), jnp.ones(2)
)
TWO_LINEAR = r"Raised by layer 2 \(Linear\) of a chain, called with what layer 1.*f64\[3\]"
X = jnp.ones(4)


class Doubled(eqx.nn.Sequential):
    """A model that is more than its layers."""

    def __call__(self, x: Any, *args: Any, **named: Any) -> Any:
        return 2 * super().__call__(x, *args, **named)


OF_ITS_OWN = Doubled([jnp.sin])  # pyright: ignore[reportCallIssue]


class Renamed(eqx.nn.Sequential):
    """A model that is its layers."""


def test_a_sequential_with_another_call() -> None:
    layers = [jnp.sin, jnp.tanh]
    doubled: Any = Doubled
    renamed: Any = Renamed
    assert_close(checkpointed_chain([doubled([eqx.nn.Lambda(jnp.sin)])], 0.3), 2 * jnp.sin(0.3))
    assert_close(checkpointed_chain(renamed(layers), 0.3), jnp.tanh(jnp.sin(0.3)))


BAD: list[tuple[Any, Any, dict[str, Any], Any, str]] = [
    ([], 1.0, {}, ValueError, "layers must be at least one layer"),
    ([jnp.sin, 3], 1.0, {}, TypeError, "layers must be callables, but layer 1 is 3"),
    (jnp.sin, 1.0, {}, TypeError, "layers must be a list or tuple of callables"),
    (OF_ITS_OWN, 1.0, {}, TypeError, r"without a __call__.* Pass \[layers\] to run it as"),
    ([LINEAR, jnp.sin, LINEAR], X, {}, TypeError, TWO_LINEAR),
    ([LINEAR], jnp.ones(5), {}, TypeError, r"layer 0 \(Linear\) of a chain.* x, f64\[5\]"),
    ([eqx.nn.Dropout(0.5)], X, {}, RuntimeError, "Dropout requires a key"),
    (
        [LINEAR],
        X,
        {"checkpoints": 2, "memory": 3},
        ValueError,
        "must be None where memory",
    ),
    ([LINEAR], X, {"memory": 3}, ValueError, r"memory must be at least \d+ .* but is 3:"),
    ([LINEAR], X, {"block_size": 3}, ValueError, "block_size must not be given for a"),
    (eqx.nn.Dropout(0.5), X, {"key": KEY}, ValueError, "entry per layer, but is Dropout"),
    (UNEVEN, X, {}, ValueError, r"(?s)entry per layer, but is .*\[1,3,4\].*\[2\]"),
    ([COUNTER], 1.0, {}, ValueError, r"state must be given, since layer 0 \(Counter\)"),
    ([jnp.sin], 1.0, {"state": STATE}, ValueError, "state must be None, since no layer is"),
    ([COUNTER], 1.0, {"state": {}}, TypeError, r"state must be an equinox\.nn\.State or None"),
]


@pytest.mark.parametrize(
    ("layers", "x", "options", "error", "match"), BAD, ids=lambda x: str(x)[:9]
)
def test_bad_arguments(layers: Any, x: Any, options: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        checkpointed_chain(layers, x, **options)


def test_an_error_of_a_layer_stays_what_it_is() -> None:
    """A `TypeError` or a `ValueError` once became a `ValueError` that layers do not fit."""

    def loop(x: Any) -> Any:
        return checkpointed_scan(lambda c, _: (jnp.sin(c), None), x, length=9, memory=1)[0]

    with pytest.raises(TooLittleMemory, match="layer 1") as info:
        jax.grad(lambda x: checkpointed_chain([jnp.sin, loop], x).sum())(jnp.ones(3))
    assert info.value.least > 1
    with pytest.raises(jax.errors.TracerBoolConversionError):
        checkpointed_chain([lambda x: x if x.sum() > 0 else -x], jnp.ones(3))


def test_a_layer_without_a_signature() -> None:
    layer: Any = lambda x: x  # noqa: E731
    layer.__signature__ = 3
    assert not Layer.of(0, max).takes_key  # a built-in function
    with pytest.raises(TypeError, match="__signature__"):
        checkpointed_chain([layer], jnp.ones(3))
