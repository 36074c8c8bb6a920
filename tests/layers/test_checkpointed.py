"""`Checkpointed` modules: the same module, but for what its reverse pass holds."""

import copy
import io
import pickle
from collections import Counter
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support.layers import Block
from support.sharded_programs import AUTO

from jax_revolve import Checkpointed, checkpoint_layers

pytestmark = pytest.mark.usefixtures("default_precision")

KEY = jax.random.key(0)

quick = pytest.mark.usefixtures("compile_quickly")


class Model(eqx.Module):
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self) -> None:
        self.blocks = [Block(k) for k in jax.random.split(KEY, 3)]
        self.head = eqx.nn.Linear(4, 2, key=KEY)

    def __call__(self, x: Any, key: Any) -> Any:
        for block, k in zip(self.blocks, jax.random.split(key, 3), strict=True):
            x = block(x, key=k)
        return self.head(x)


def leaves_equal(ours: Any, theirs: Any) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if eqx.is_array(a):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        else:
            assert a == b


@quick
def test_transformations_of_a_model_with_dropout() -> None:
    @eqx.filter_jit
    def transformed(model: Any, x: Any) -> Any:
        f = lambda x: jnp.sum(model(x, KEY) ** 2)  # noqa: E731
        of_model = eqx.filter_value_and_grad(lambda model: jnp.sum(model(x, KEY) ** 2))(model)
        return of_model, jax.hessian(f)(x), jax.vmap(jax.grad(f))(jnp.stack([x, 2 * x]))

    model, x = Model(), jnp.arange(4.0)
    leaves_equal(*(transformed(m, x) for m in (checkpoint_layers(model, Block), model)))


def test_weights_are_the_same_on_all_devices() -> None:
    """And the batch is not, so that types of operands differ in `jax.shard_map`."""
    x = jnp.arange(32.0).reshape(8, 4)

    def loss(linear: Any) -> Any:
        local = lambda x: jax.lax.psum(jnp.sum(jnp.sin(jax.vmap(linear)(x))), "data")  # noqa: E731
        return jax.shard_map(local, mesh=AUTO, in_specs=P("data"), out_specs=P())(x)

    linear = eqx.nn.Linear(4, 4, key=KEY)
    gradient = eqx.filter_jit(eqx.filter_grad(loss))
    leaves_equal(gradient(Checkpointed(linear)), gradient(linear))


def test_it_has_the_text_and_the_attributes_of_the_module() -> None:
    model, block = Model(), Block(KEY)
    ours = Checkpointed(block)
    assert repr(checkpoint_layers(model, (Block, eqx.nn.Linear))) == repr(model)
    assert eqx.tree_pformat([ours]) == eqx.tree_pformat([block])
    assert (ours.dropout.p, ours.size(2)) == (0.3, 32)
    assert ours.wrapped is block
    with pytest.raises(AttributeError, match="'Block' object has no attribute 'nothing'"):
        ours.nothing  # noqa: B018


@quick
def test_it_is_a_module() -> None:
    """For `tree_at`, `inference_mode`, copying, pickling and serialization."""
    model = checkpoint_layers(Model(), Block)
    changed = eqx.tree_at(lambda m: m.blocks[1].linear.bias, model, jnp.full(4, 7.0))
    assert isinstance(changed.blocks[1], Checkpointed)
    np.testing.assert_array_equal(changed.blocks[1].linear.bias, jnp.full(4, 7.0))
    inferring, x = eqx.nn.inference_mode(changed), jnp.arange(4.0)
    np.testing.assert_array_equal(inferring(x, KEY), inferring(x, jax.random.key(1)))
    without_keys = jax.tree.map(np.asarray, Checkpointed(Block(KEY)))
    for copied in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        result = copied(without_keys)
        assert isinstance(result, Checkpointed)
        leaves_equal(result, without_keys)
    stream = io.BytesIO()
    eqx.tree_serialise_leaves(stream, Model())  # as a plain model, read as a checkpointed one
    stream.seek(0)
    other = jax.tree.map(lambda x: x * 0 if eqx.is_array(x) else x, model)
    leaves_equal(eqx.tree_deserialise_leaves(stream, other), Model())


@quick
def test_sequential_with_state() -> None:
    def make() -> eqx.nn.Sequential:
        norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        return eqx.nn.Sequential([eqx.nn.Linear(4, 4, key=KEY), norm, eqx.nn.Lambda(jnp.tanh)])

    model, state = eqx.nn.make_with_state(make)()
    xs = jax.random.normal(KEY, (5, 4))

    @eqx.filter_jit
    @partial(eqx.filter_grad, has_aux=True)
    def gradient(model: Any) -> Any:
        run = jax.vmap(lambda x: model(x, state), axis_name="batch", out_axes=(0, None))
        out, new = run(xs)
        return jnp.sum(out**2), new

    ours = checkpoint_layers(model, (eqx.nn.BatchNorm, eqx.nn.Linear))
    assert [isinstance(layer, Checkpointed) for layer in ours.layers] == [True, True, False]
    leaves_equal(gradient(ours), gradient(model))


def test_a_layer_is_wrapped_once() -> None:
    assert isinstance(Checkpointed(Checkpointed(Block(KEY))).wrapped, Block)
    model = checkpoint_layers(checkpoint_layers(Model(), Block), (Block, eqx.nn.Linear))
    block: Any = model.blocks[0]
    assert isinstance(block, Checkpointed)
    assert isinstance(block.wrapped, Block)
    assert isinstance(block.linear, Checkpointed)
    assert isinstance(model.head, Checkpointed)


def test_a_type_that_is_not_there() -> None:
    missing = r"there is no BatchNorm.*: Block, Dropout, LayerNorm, Lin"
    with pytest.raises(ValueError, match=missing):
        checkpoint_layers(Model(), eqx.nn.BatchNorm)
    with pytest.raises(TypeError, match=r"layer_type must be a subclass of equinox\.Module"):
        checkpoint_layers(Model(), int)
    with pytest.raises(TypeError, match=r"module must be an equinox\.Module with a __call__"):
        Checkpointed(jnp.tanh)


def compiled(model: Any, x: Any) -> Any:
    gradient: Any = eqx.filter_jit(eqx.filter_grad(lambda model: jnp.sum(model(x) ** 2)))
    return gradient.lower(model).compile().compiled


def bytes_held(program: Any) -> int:
    return program.memory_analysis().temp_size_in_bytes


def test_it_holds_its_input_alone() -> None:
    keys, x = jax.random.split(KEY, 8), jnp.ones((512, 64), jnp.float32)
    layers = [eqx.nn.MLP(64, 64, 256, 1, key=k, dtype=jnp.float32) for k in keys]
    model = eqx.nn.Sequential([eqx.nn.Lambda(eqx.filter_vmap(layer)) for layer in layers])
    ours = checkpoint_layers(model, eqx.nn.Lambda)
    assert bytes_held(compiled(ours, x)) <= 12 * x.nbytes + bytes_held(compiled(model[:1], x))
    assert bytes_held(compiled(model, x)) >= 30 * x.nbytes


class Convolution(eqx.nn.Conv2d):
    def __call__(self, x: Any, *, key: Any = None) -> Any:
        return x + jnp.tanh(jnp.sin(super().__call__(x)))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="branches are for CPUs")
def test_convolutions_run_again_outside_of_branches() -> None:
    """XLA's CPU backend lays out the operands of a convolution for its quick routines outside of
    branches and loops alone: networks of convolutions, with every layer run again in a branch, took
    four times as long as plain ones."""
    keys, x = jax.random.split(KEY, 8), jnp.ones((4, 16, 16), jnp.float32)
    make: Any = Convolution
    model = eqx.nn.Sequential([make(4, 4, 3, padding=1, key=k) for k in keys])
    plain, ours = compiled(model, x), compiled(checkpoint_layers(model, Convolution), x)
    assert _convolutions(plain) == {"ENTRY": 3 * 8 - 1}  # x has no cotangent
    assert _convolutions(ours) == {"ENTRY": 4 * 8 - 1}
    assert bytes_held(ours) < bytes_held(plain) / 2


def _convolutions(program: Any) -> Counter[str]:
    """How many there are in each computation of the program."""
    found, computation = Counter[str](), ""
    for line in program.as_text().splitlines():
        computation = line.split()[0] if line.endswith("{") else computation
        found.update([computation] if " convolution(" in line else [])
    return found
