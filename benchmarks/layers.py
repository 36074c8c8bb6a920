"""`checkpointed_chain` beside storing the residuals of every layer, and `jax.checkpoint` on every
block: a transformer of 48 blocks with dropout, a residual network of 100 layers with batch norm."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax

from benchmarks.contenders import names
from benchmarks.runner.benchmark import Benchmark
from benchmarks.runner.comparison import Comparison, Search
from benchmarks.runner.programs import Compiler, Contender, Program
from benchmarks.workloads.models import resnet, transformer
from jax_revolve import Checkpointed, checkpointed_chain


def comparisons(quick: bool) -> Iterator[Comparison]:
    """XLA takes minutes for each program of 48 blocks that are a list, and seconds for a stack."""
    shares = (0.5, 0.25, 0.1)
    if quick:
        cases = [
            (transformer(2, 8, 8, 2, is_stack=True), _run_stack, (), (0.9,)),
            (resnet(3, 2, 4, 2), _run_list, (2,), (0.9,)),
        ]
    else:
        cases = [
            (transformer(48, 256, 256, 2, is_stack=True), _run_stack, (24, 9), shares),
            (transformer(48, 256, 256, 1, is_stack=False), _run_list, (), (0.25,)),
            (resnet(100, 16, 32, 8), _run_list, (50, 13), shares),
        ]
    for workload, run, checkpoints, shares in cases:
        contenders = [
            Contender(names.PLAIN_LAYERS, run),
            Contender("jax.checkpoint on every block", partial(run, wrap=eqx.filter_checkpoint)),
            Contender("Checkpointed on every block", partial(run, wrap=Checkpointed)),
            Contender("jax_revolve, by default", _chain()),
            *(Contender(names.JAX_REVOLVE, _chain(checkpoints=s), s) for s in checkpoints),
            *map(_within, shares),
        ]
        yield Comparison(workload, "gradient", contenders)


def _within(share: float) -> Search:
    """A share of the plain model's memory. Inside of `jax.vmap` a budget is for one example."""

    def search(compile: Compiler, earlier: list[Program]) -> list[Program]:
        memory = int(share * earlier[0].temp_bytes)
        batch = jax.tree.leaves(compile.workload.passive["inputs"])[0].shape[0]
        loop = _chain(memory=memory // batch)
        return [compile(Contender(names.JAX_REVOLVE, loop, budget=memory))]

    return search


def _chain(**options: Any) -> Callable[..., Any]:
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


def _run_stack(
    stack: Any, x: Any, key: Any, state: Any, wrap: Any = lambda layer: layer
) -> tuple[Any, Any]:
    arrays, rest = eqx.partition(stack, eqx.is_array)
    keys = jax.random.split(key, jax.tree.leaves(arrays)[0].shape[0])

    def layer(x: Any, inputs: Any) -> tuple[Any, None]:
        arrays, key = inputs
        return wrap(eqx.combine(arrays, rest))(x, key=key), None

    return jax.lax.scan(layer, x, (arrays, keys))[0], state


BENCHMARK = Benchmark("layers", comparisons)
