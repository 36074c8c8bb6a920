"""`checkpoint_loops` on functions of packages that know nothing of it: the same values and
derivatives, and the compiled gradient of the long ones takes a tenth of the memory at most."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import diffrax
import flax.linen
import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.experimental.ode import odeint

from jax_revolve import checkpoint_loops, explain


class Program(NamedTuple):
    fun: Callable[[Any], Any]
    argument: Any
    memory_ratio: float
    """By how much the compiled gradient's temporaries shrink at least."""
    found: int
    """How many loops are checkpointed."""


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def optax_training() -> Program:
    """Differentiated with respect to the learning rate and the initial weights."""
    xs = numbers(1000, 16, 10)
    ys = jnp.sin(xs.sum(-1))

    def loss(w: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - y) ** 2)

    def train(start: Any) -> Any:
        rate, weights = start
        optimizer = optax.adam(rate)

        def step(state: Any, batch: Any) -> Any:
            weights, moments = state
            value, gradient = jax.value_and_grad(loss)(weights, *batch)
            updates, moments = optimizer.update(gradient, moments, weights)
            return (optax.apply_updates(weights, updates), moments), value

        return lax.scan(step, (weights, optimizer.init(weights)), (xs, ys))[1][-1]

    weights = (0.1 * numbers(10, 32), 0.1 * numbers(32))
    return Program(train, (jnp.float32(1e-3), weights), 50, 1)


def linen_network() -> Program:
    network = flax.linen.RNN(flax.linen.LSTMCell(32), return_carry=True)
    xs = numbers(2, 5000, 8)
    parameters = network.init(jax.random.key(0), xs[:, :1])
    return Program(lambda p: jnp.sum(network.apply(p, xs)[0][1] ** 2), parameters, 100, 1)


def nnx_network() -> Program:
    network = nnx.RNN(nnx.GRUCell(8, 32, rngs=nnx.Rngs(0)))
    graph, parameters, rest = nnx.split(network, nnx.Param, ...)
    xs, start = numbers(2, 5000, 8), jnp.zeros((2, 32), jnp.float32)

    def loss(parameters: Any) -> Any:
        network = nnx.merge(graph, parameters, rest)
        return jnp.sum(network(xs, initial_carry=start, return_carry=True)[0] ** 2)

    return Program(loss, parameters, 100, 1)


def diffrax_solution() -> Program:
    """Its own loops are nested, and checkpointed at every level: what is won is what is left."""

    def solve(start: Any) -> Any:
        y, decay = start
        term = diffrax.ODETerm(lambda t, y, a: -a * y + jnp.sin(jnp.roll(y, 1)))
        solution = diffrax.diffeqsolve(
            term, diffrax.Euler(), 0.0, 4.0, 0.01, y, decay, adjoint=diffrax.DirectAdjoint()
        )
        return jnp.sum(jnp.asarray(solution.ys))

    return Program(solve, (numbers(5000), jnp.float32(0.5)), 1.5, 3)


def odeint_solution() -> Program:
    """It has a derivative rule of its own, and is left as it is."""
    times = jnp.linspace(0.0, 1.0, 50, dtype=jnp.float32)
    field = lambda y, t: -(y**3)  # noqa: E731
    return Program(lambda y: jnp.sum(odeint(field, y, times)[-1]), numbers(5), 1, 0)


def mapped_rows() -> Program:
    norm = lambda row: jnp.sum(jnp.tanh(jnp.outer(row, row))) ** 2  # noqa: E731
    return Program(lambda x: jnp.sum(lax.map(norm, x)), numbers(500, 60), 100, 1)


@pytest.mark.parametrize(
    "make",
    [
        *(optax_training, linen_network, nnx_network),
        *(diffrax_solution, odeint_solution, mapped_rows),
    ],
)
def test_a_third_party_program(make: Callable[[], Program]) -> None:
    program = make()
    assert len(explain(program.fun)(program.argument).loops) == program.found
    theirs, ours = (
        jax.jit(jax.value_and_grad(fun)).lower(program.argument).compile()
        for fun in (program.fun, checkpoint_loops(program.fun))
    )
    close = lambda a, b: np.testing.assert_allclose(a, b, 2e-4, 2e-5 * np.max(np.abs(b)))  # noqa: E731
    jax.tree.map(close, ours(program.argument), theirs(program.argument))
    before, after = (cast(Any, p.memory_analysis()).temp_size_in_bytes for p in (theirs, ours))
    assert before >= program.memory_ratio * after
