"""`checkpointed_chain` beside storing the residuals of every layer, and `jax.checkpoint` on every
block: a transformer of 48 blocks with dropout, a residual network of 100 layers with batch norm."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.contenders.scans import JAX_REVOLVE
from benchmarks.report.results import Results, Run, quickest
from benchmarks.report.table import Table, over
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison, Search
from benchmarks.runner.programs import Compiler, Contender, Inputs, Loop, Program, Workload
from jax_revolve import Checkpointed, checkpointed_chain

PLAIN = "plain"


class TransformerBlock(eqx.Module):
    """Attention, and then two layers, each after a layer norm and with dropout."""

    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    layers: tuple[eqx.nn.Linear, eqx.nn.Linear]
    dropout: eqx.nn.Dropout

    def __init__(self, width: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.norms = (eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width))
        self.attention = eqx.nn.MultiheadAttention(4, width, key=keys[0])
        widen = eqx.nn.Linear(width, 4 * width, key=keys[1])
        self.layers = (widen, eqx.nn.Linear(4 * width, width, key=keys[2]))
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x: jax.Array, *, key: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        normal = jax.vmap(self.norms[0])(x)
        x = x + self.dropout(self.attention(normal, normal, normal), key=first)
        hidden = jax.nn.gelu(jax.vmap(self.layers[0])(jax.vmap(self.norms[1])(x)))
        return x + self.dropout(jax.vmap(self.layers[1])(hidden), key=second)


class ResidualLayer(eqx.nn.StatefulLayer):
    """A convolution and a batch norm, added to what goes in."""

    convolution: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm

    def __init__(self, channels: int, key: jax.Array) -> None:
        self.convolution = eqx.nn.Conv2d(channels, channels, 3, padding=1, key=key)
        self.norm = eqx.nn.BatchNorm(channels, "batch", mode="batch")

    def __call__(self, x: jax.Array, state: eqx.nn.State, *, key: Any = None) -> Any:
        del key
        y, state = self.norm(self.convolution(x), state)
        return x + jax.nn.relu(y), state


def transformer(blocks: int, width: int, length: int, batch: int, *, is_stack: bool) -> Workload:
    """The loop is called with layers, x, key and state. A stack of layers is one module whose
    weights have a leading axis; otherwise they are a list."""
    keys = jax.random.split(jax.random.key(0), blocks)
    make = partial(TransformerBlock, width)
    layers = eqx.filter_vmap(make)(keys) if is_stack else list(map(make, keys))
    weights, rest = eqx.partition(layers, eqx.is_inexact_array)

    def apply(run: Loop, weights: Any, xs: jax.Array) -> jax.Array:
        layers = eqx.combine(weights, rest)
        keys = jax.random.split(jax.random.key(2), xs.shape[0])
        return jnp.sum(jax.vmap(lambda x, key: run(layers, x, key, None)[0])(xs, keys) ** 2)

    family = "transformer stack" if is_stack else "transformer"
    size = f"width {width}, sequence {length}, batch {batch}"
    xs = jax.random.normal(jax.random.key(1), (batch, length, width))
    return _workload(family, size, blocks, weights, xs, apply)


def resnet(count: int, channels: int, width: int, batch: int) -> Workload:
    keys = jax.random.split(jax.random.key(0), count)
    make = eqx.nn.make_with_state(lambda: [ResidualLayer(channels, key) for key in keys])
    layers, state = make()
    weights, rest = eqx.partition(layers, eqx.is_inexact_array)
    xs = jax.random.normal(jax.random.key(1), (batch, channels, width, width))

    def apply(run: Loop, weights: Any, inputs: Any) -> jax.Array:
        xs, state = inputs
        call = partial(run, eqx.combine(weights, rest), key=None, state=state)
        mapped: Any = jax.vmap(call, axis_name="batch", out_axes=(0, None))
        return jnp.mean(mapped(xs)[0] ** 2)

    size = f"{channels} channels, {width} x {width}, batch {batch}"
    return _workload("residual network", size, count, weights, (xs, state), apply)


def _workload(
    family: str, size: str, count: int, weights: Any, inputs: Any, apply: Callable[..., jax.Array]
) -> Workload:
    def loss(loop: Loop, active: Inputs, passive: Inputs) -> jax.Array:
        return apply(loop, active["layers"], passive["inputs"])

    inputs = {"inputs": inputs}
    return Workload(family, f"n = {count}", size, count, loss, {"layers": weights}, inputs)


def comparisons(quick: bool) -> Iterator[Comparison]:
    """XLA takes minutes for each program of 48 blocks that are a list, and seconds for a stack."""
    shares = (0.5, 0.25, 0.1)
    if quick:
        cases = [
            (transformer(2, 8, 8, 2, is_stack=True), run_stack, (), (0.9,)),
            (resnet(3, 2, 4, 2), _run_list, (2,), (0.9,)),
        ]
    else:
        cases = [
            (transformer(48, 256, 256, 2, is_stack=True), run_stack, (24, 9), shares),
            (transformer(48, 256, 256, 1, is_stack=False), _run_list, (), (0.25,)),
            (resnet(100, 16, 32, 8), _run_list, (50, 13), shares),
        ]
    for workload, run, checkpoints, shares in cases:
        contenders = [
            Contender(PLAIN, run),
            Contender("jax.checkpoint on every block", partial(run, wrap=eqx.filter_checkpoint)),
            Contender("jax.checkpoint that saves products", partial(run, wrap=_products_saved)),
            Contender("Checkpointed on every block", partial(run, wrap=Checkpointed)),
            Contender("jax_revolve, by default", chain()),
            *(Contender(JAX_REVOLVE, chain(checkpoints=s), s) for s in checkpoints),
            *map(_within, shares),
        ]
        yield Comparison(workload, "gradient", contenders)


def _products_saved(layer: Any) -> Any:
    return eqx.filter_checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)


def _within(share: float) -> Search:
    """A share of the plain model's memory. Inside `jax.vmap` a budget is for one example."""

    def search(compile: Compiler, earlier: list[Program]) -> list[Program]:
        memory = int(share * earlier[0].temp_bytes)
        batch = jax.tree.leaves(compile.workload.passive["inputs"])[0].shape[0]
        loop = chain(memory=memory // batch)
        return [compile(Contender(JAX_REVOLVE, loop, budget=memory))]

    return search


def chain(**options: Any) -> Callable[..., Any]:
    def run(layers: Any, x: Any, key: Any, state: Any) -> Any:
        result = checkpointed_chain(layers, x, key=key, state=state, **options)
        return (result, None) if state is None else result

    return run


def _run_list(
    layers: Sequence[Any], x: Any, key: Any, state: Any, wrap: Any = lambda layer: layer
) -> tuple[Any, Any]:
    keys = [None] * len(layers) if key is None else jax.random.split(key, len(layers))
    for layer, k in zip(layers, keys, strict=True):
        if state is None:
            x = wrap(layer)(x, key=k)
        else:
            x, state = wrap(layer)(x, state, key=k)
    return x, state


def run_stack(
    stack: Any, x: Any, key: Any, state: Any, wrap: Any = lambda layer: layer
) -> tuple[Any, Any]:
    arrays, rest = eqx.partition(stack, eqx.is_array)
    keys = jax.random.split(key, jax.tree.leaves(arrays)[0].shape[0])

    def layer(x: Any, inputs: Any) -> tuple[Any, None]:
        arrays, key = inputs
        return wrap(eqx.combine(arrays, rest))(x, key=key), None

    return jax.lax.scan(layer, x, (arrays, keys))[0], state


def _run_by(run: Run) -> str:
    if run["budget"] is not None:
        return f"{run['contender']}, memory={run['budget'] / 1e6:.1f} MB"
    if run["checkpoints"] is not None:
        return f"{run['contender']}, checkpoints={run['checkpoints']}"
    return run["contender"]


def _figure(workload: str, cell: str, share: float | None = None) -> Callable[[Results], str]:
    """Of the plain model, or of the one with a share of its memory as the budget."""

    def figure(results: Results) -> str:
        runs = [r for r in results.runs if r["workload"].startswith(workload)]
        run = plain = quickest(runs, contender=PLAIN)
        if share is not None:
            budget = share * plain["temp_bytes"]
            run = quickest(r for r in runs if r["budget"] and abs(r["budget"] / budget - 1) < 0.04)
        return cell.format_map(run)

    return figure


LIST, STACK = "transformer, ", "transformer stack, "
MEMORY = "{MB:.0f} MB"
FIGURES = {
    "stack-half": _figure(STACK, MEMORY, 0.5),
    "stack-half-time": _figure(STACK, "{seconds:.1f} s", 0.5),
    "stack-quarter": _figure(STACK, MEMORY, 0.25),
    "stack-quarter-time": _figure(STACK, "{seconds:.1f} s", 0.25),
    "plain-list": _figure(LIST, "{seconds:.0f} s"),
    "plain-stack": _figure(STACK, "{seconds:.0f} s"),
}
TABLES = {
    "layers": Table(
        "Gradients of models {where}; memory and time over the plain model's"
        " (`benchmarks/layers.py`):",
        lambda results: results.runs,
        [
            ("model", "{workload}"),
            ("layers run by", _run_by),
            ("memory", "{MB:.2f} MB"),
            ("share", lambda run: f"{run.memory_over(PLAIN):.3f}"),
            ("time", over(PLAIN)),
        ],
    ),
}
BENCHMARK = Benchmark("layers", comparisons, TABLES, FIGURES)
