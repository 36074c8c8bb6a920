"""The promise of `memory=`, over twelve kinds of loops and five budgets each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.asked import explained_scan
from support.compiled import compiled
from support.steps import gru, lstm, rnn, runge_kutta

from jax_revolve import checkpointed_scan

pytestmark = pytest.mark.usefixtures("default_precision")

LENGTH = 300
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5)
"""Of what `lax.scan` takes, which stores everything."""


@dataclass(frozen=True)
class Workload:
    """`step(parameters, carry, x)` returns the carry; all are differentiated with respect to
    whatever can be in `arguments`: parameters, initial carry and xs."""

    name: str
    step: Callable[[Any, Any, Any], Any]
    arguments: tuple[Any, Any, Any]

    def loss(
        self, scan: Callable[..., Any], length: int, parameters: Any, init: Any, xs: Any
    ) -> jax.Array:
        carry, _ = scan(lambda c, x: (self.step(parameters, c, x), None), init, xs, length)
        floats = [x for x in jax.tree.leaves(carry) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum((jnp.sum(x.astype(jnp.float32) ** 2) for x in floats), jnp.float32(0))

    def of_length(self, length: int) -> tuple[Any, Any, Any]:
        """The arguments for a loop of so many steps."""
        parameters, init, x = self.arguments
        repeat = lambda a: jnp.broadcast_to(a, (length, *a.shape))  # noqa: E731
        return parameters, init, jax.tree.map(repeat, x)


def array(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    values = np.random.default_rng(sum(shape)).normal(size=shape)
    return jnp.asarray(values / shape[0] ** 0.5, dtype)


def diffusion(_: None, u: Any, __: None) -> Any:
    return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3


def waves(speed: Any, state: Any, source: Any) -> Any:
    """Two fields in two dimensions, the parameters a field too, a source that comes with time."""
    now, before = state
    laplacian = sum(jnp.roll(now, s, axis) for s in (1, -1) for axis in (0, 1)) - 4 * now
    return 2 * now - before + speed**2 * laplacian + source, now


def linear(matrix: Any, u: Any, _: None) -> Any:
    return matrix @ u


def attention(p: Any, h: Any, _: None) -> Any:
    """Every token looks at all of the others, and then through two layers."""
    q, k, v = jnp.split(h @ p["qkv"], 3, axis=-1)
    h = h + jax.nn.softmax(q @ k.T / h.shape[-1] ** 0.5, axis=-1) @ v
    return h + jax.nn.gelu(h @ p["in"]) @ p["out"]


def oscillators(p: Any, y: Any, _: None) -> Any:
    """Few operations on little."""
    return runge_kutta(lambda y: jnp.stack([y[1], p * (1 - y[0] ** 2) * y[1] - y[0]]), y)


def neural_ode(p: Any, y: Any, _: None) -> Any:
    """Residuals much larger than the state."""
    return runge_kutta(lambda y: jnp.tanh(y @ p["in"]) @ p["out"], y)


def convolution(kernel: Any, image: Any, _: None) -> Any:
    padded = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
    return jax.nn.relu(padded) + 0.5 * image


def particles(p: Any, carry: Any, x: Any) -> Any:
    """A tree of mixed dtypes: half precision, integers, a flag, a key, and a running sum."""
    key, noise = carry["key"], jax.random.normal(carry["key"], carry["place"].shape, jnp.float32)
    place = carry["place"] + 0.01 * carry["speed"].astype(jnp.float32)
    force = -p * jnp.sin(place) + 0.1 * noise * x
    return {
        "key": jax.random.fold_in(key, 1),
        "place": place,
        "speed": carry["speed"] + (0.01 * force).astype(jnp.bfloat16),
        "bounces": carry["bounces"] + (jnp.abs(place) > 1).astype(jnp.int8),
        "up": ~carry["up"],
        "energy": carry["energy"] + jnp.sum(force**2),
    }


def weights(width: int, **columns: int) -> dict[str, jax.Array]:
    return {name: array(width, n) for name, n in columns.items()}


OF_PARTICLES = {
    "key": jax.random.key(0),
    "place": array(4000),
    "speed": array(4000, dtype=jnp.bfloat16),
    "bounces": jnp.zeros(4000, jnp.int8),
    "up": jnp.bool_(True),
    "energy": jnp.float32(0),
}
OF_RNN = {**weights(64, w=64, v=64), "b": array(64)}
OF_LSTM = {**weights(128, w=512, v=512), "b": array(512)}
OF_GRU = weights(192, w=384, v=384, u=192, t=192)
OF_ATTENTION = {**weights(64, qkv=192), "in": array(64, 256), "out": array(256, 64)}
OF_LAYERS = {**weights(256, qkv=768), "in": array(256, 512), "out": array(512, 256)}
OF_ODE = {"in": array(16, 256), "out": array(256, 16)}
SPEED = 0.3 * jnp.ones((64, 64), jnp.float32)

WORKLOADS = [
    Workload("diffusion", diffusion, (None, array(20000), None)),
    Workload("waves", waves, (SPEED, (array(64, 64),) * 2, array(64, 64))),
    Workload("linear", linear, (array(200, 200), array(200), None)),
    Workload("rnn", rnn, (OF_RNN, array(8, 64), array(8, 64))),
    Workload("lstm", lstm, (OF_LSTM, (array(8, 128),) * 2, array(8, 128))),
    Workload("gru", gru, (OF_GRU, array(8, 192), array(8, 192))),
    Workload("attention", attention, (OF_ATTENTION, array(32, 64), None)),
    Workload("oscillators", oscillators, (jnp.float32(0.5), array(2, 500), None)),
    Workload("neural_ode", neural_ode, (OF_ODE, array(32, 16), None)),
    Workload("convolution", convolution, (array(8, 8, 3, 3), array(1, 8, 32, 32), None)),
    Workload("particles", particles, (jnp.float32(1.5), OF_PARTICLES, array(4000))),
    Workload("layers", attention, (OF_LAYERS, array(16, 256), None)),
]


def temporaries(workload: Workload, scan: Any, length: int) -> int:
    """Of the compiled gradient with respect to all that has one."""
    arguments = workload.of_length(length)
    given = tuple(i for i, argument in enumerate(arguments) if argument is not None)
    gradient = jax.grad(partial(workload.loss, scan, length), given, allow_int=True)
    return compiled(gradient, *arguments).memory_analysis().temp_size_in_bytes


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    ("workload", "shares"),
    [
        pytest.param(workload, shares, id=f"{workload.name}-{shares}", marks=marks)
        for i, workload in enumerate(WORKLOADS)
        for shares, marks in (
            (SHARES[1:2], [] if i % 3 == 0 else [pytest.mark.slow]),
            ((*SHARES[:1], *SHARES[2:]), [pytest.mark.slow]),
        )
    ],
)
def test_gradient_keeps_to_its_budget(
    workload: Workload, shares: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget covers the checkpoints, the tape and a carry. The allowance is what no plan can
    change: what the gradient of a single step takes for itself, the cotangents of closed-over
    values, two carries, and 16 kB for the schedule.

    With several devices, XLA for CPU copies the operands of products of weights: this is for one.
    And it may convert all checkpoints from bfloat16 to float32 at once, and hold both.
    """
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    parameters, init, xs = workload.of_length(LENGTH)
    step = lambda carry, x, parameters: (workload.step(parameters, carry, x), None)  # noqa: E731
    explained = partial(explained_scan, step, init, xs, LENGTH, weights=[parameters])
    report = explained()
    least = report.memory(report.choices[0])
    closed_over = report.always["cotangents of closed-over values"]
    allowance = temporaries(workload, lax.scan, 1) + closed_over + 2 * report.sizes.carry + 16384
    everything = temporaries(workload, lax.scan, LENGTH)
    half = sum(x.nbytes for x in jax.tree.leaves(init) if x.dtype == jnp.bfloat16)
    for share in shares:
        budget = max(int(share * everything), least)
        plan = explained(memory=budget).plan
        converted = 2 * half * plan.checkpoints
        held = temporaries(workload, partial(checkpointed_scan, memory=budget), LENGTH)
        assert held <= budget + allowance + converted, share


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    def loss(u: Any, memory: int) -> Any:
        step = lambda u, _: (jnp.sin(u), None)  # noqa: E731
        return jnp.sum(checkpointed_scan(step, u, None, 100, memory=memory)[0])

    u = jnp.ones(1000)
    least = 3 * u.nbytes
    with pytest.raises(ValueError, match=f"memory must be at least {least} bytes here, but"):
        jax.grad(loss)(u, least - 1)
    assert jax.grad(loss)(u, least).shape == u.shape


def test_the_budget_is_that_of_the_batch_that_is_differentiated() -> None:
    """Inside of `vmap` a loop knows one example. A batched loop knows them all."""

    def chosen(batch: int) -> Any:
        state = jax.ShapeDtypeStruct((batch, 100), jnp.float32)
        return explained_scan(lambda u, _: (jnp.sin(u), None), state, length=100, memory=40000).plan

    assert chosen(1).block_size > chosen(10).block_size
