"""`checkpoint_loops` and Flax NNX modules, whose variables change in place, against `nnx.jit`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.errors import TraceContextError
from jax import lax

from jax_revolve import certify, checkpoint_loops, checkpointed_chain

pytestmark = pytest.mark.usefixtures("default_precision")

X = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)


class Model(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.linear = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.dropout(self.norm(x))
        return lax.scan(lambda u, _: (jnp.tanh(self.linear(u)), None), x, length=20)[0]


def loss(model: Any, x: Any) -> Any:
    return jnp.sum(model(x) ** 2)


def trained(fun: Any) -> list[Any]:
    """The losses of two steps of training, and the state after them."""
    model, losses = Model(), []
    for _ in range(2):
        value, gradient = nnx.value_and_grad(fun)(model, X)
        parameters = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient))
        losses.append(value)
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    key_data = lambda x: jax.random.key_data(x) if is_key(x) else x  # noqa: E731
    return [*losses, *map(key_data, jax.tree.leaves(nnx.state(model)))]


def test_training_with_batch_norm_and_dropout() -> None:
    """State used to be frozen, without a word."""
    for ours, theirs in zip(trained(checkpoint_loops(loss)), trained(nnx.jit(loss)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_recurrent_network() -> None:
    network = nnx.RNN(nnx.GRUCell(4, 5, rngs=nnx.Rngs(0)))
    xs = jnp.tile(X, (2, 8, 1))
    expected = nnx.grad(loss)(network, xs)
    ours = nnx.grad(checkpoint_loops(loss))(network, xs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), ours, expected)


@pytest.mark.parametrize("of", [lambda m: m, lambda m: m.__call__], ids=["module", "method"])
def test_a_module_is_a_function(of: Any) -> None:
    """Flax refused it: "Cannot extract graph node from different trace level"."""
    ours, theirs = Model(), Model()
    for _ in range(2):  # its random counts and batch statistics go on
        np.testing.assert_allclose(checkpoint_loops(of(ours))(X), theirs(X), rtol=1e-5)
    statistics = (jax.tree.leaves(nnx.state(m, nnx.BatchStat)) for m in (ours, theirs))
    for each in zip(*statistics, strict=True):
        np.testing.assert_allclose(*each, rtol=1e-5)


def test_what_cannot_change_is_refused() -> None:
    model = Model()
    with pytest.raises(TraceContextError) as raised:
        checkpoint_loops(lambda x: loss(model, x))(X)
    assert any("Pass the NNX module as an argument" in note for note in raised.value.__notes__)


class Tied(Model):
    """Two places have the same layers, and so do two others the same random counts."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.rngs = self.norm, self.dropout.rngs

    def __call__(self, x: Any) -> Any:
        return self.last(super().__call__(x))


@pytest.mark.parametrize("is_pair", [False, True])
def test_variables_that_stand_in_several_places(is_pair: bool) -> None:
    """They were an error, which said to pass the module once."""
    ours, theirs = Tied(), Tied()
    of_both: Any = lambda m, x: loss(m[0], x) + loss(m[1], x)  # noqa: E731
    call = of_both if is_pair else loss
    arguments = [(m, m) if is_pair else m for m in (ours, theirs)]
    for _ in range(2):
        functions = checkpoint_loops(call), nnx.jit(call)
        values = [f(m, X) for f, m in zip(functions, arguments, strict=True)]
        np.testing.assert_allclose(*values, rtol=1e-5)
    states = [jax.tree.leaves(nnx.state(m, nnx.BatchStat)) for m in (ours, theirs)]
    for each in zip(*states, strict=True):
        np.testing.assert_allclose(*each, rtol=1e-5)
    counts: list[Any] = [m.rngs for m in (ours, theirs)]
    assert {int(each.count[...]) for each in counts} == {2 + 2 * is_pair}


def test_layers_that_change_their_variables_are_refused() -> None:
    """The changes were lost: each call drew the same random numbers."""
    dropout = nnx.Dropout(0.3, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"layers must not change .* as layer 1 \(Dropout\) does"):
        checkpointed_chain([jnp.tanh, dropout], X)
    drawn = lambda x, key: dropout(x, rngs=nnx.Rngs(key))  # noqa: E731
    assert jnp.any(checkpointed_chain([jnp.tanh, drawn], X, key=jax.random.key(0)) == 0)


def test_a_certificate_begins_where_the_gradient_began() -> None:
    """A gradient that draws random numbers advanced their count first."""
    model = Model()

    def gradient(model: Any) -> Any:
        found = jax.grad(lambda m: loss(m, X), allow_int=True)(model)
        nnx.grad(loss)(model, X)  # draws, too
        return found

    assert certify(lambda m: loss(m, X), gradient)(model).error < 1e-5
    with pytest.raises(TypeError, match=r"as jax.grad\(fun, argnums=0, allow_int=True\) does"):
        certify(lambda m: loss(m, X), lambda m: nnx.grad(loss)(m, X))(model)
