"""Batching rules: which results are batched under `vmap`, and functions mapped over axes again."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
from jax.custom_batching import custom_vmap

from jax_revolve._compat.functions import Batched
from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.values import is_traced
from jax_revolve.step.loop import once

T = TypeVar("T")
Run: TypeAlias = Callable[..., Sequence[Any]]


def batched_dims(axis: Any, run: Run, operands: Sequence[Any], dims: Sequence[Any]) -> list[Any]:
    """The batch axis of each result of a batched function: the first axis, or `None` if it is not
    batched."""
    found: list[Any] = []

    @custom_vmap
    def look(values: list[Any]) -> list[Any]:
        found[:] = [None] * len(values)  # JAX calls the rule below only if something is batched
        return values

    @look.def_vmap
    def _(axis_size: int, in_batched: Any, values: list[Any]) -> Any:
        del axis_size
        found[:] = [0 if batched else None for batched in in_batched[0]]
        return values, in_batched[0]

    jax.eval_shape(vmap_over(axis, lambda *operands: look(run(*operands)), dims), *operands)
    return found


def vmap_over(axis: Any, fun: Run, dims: Sequence[Any], dims_out: Any = 0) -> Any:
    """`jax.vmap` over the axis of a batching rule."""
    return jax.vmap(
        fun,
        in_axes=tuple(dims),
        out_axes=dims_out,
        axis_name=axis.name,
        axis_size=axis.size,
        spmd_axis_name=axis.spmd_name,
    )


def batch(axis: Any, run: Run, dims: Sequence[Any], *operands: Any) -> Batched:
    """The batching rule of `run`: results and their batch axes."""
    found = batched_dims(axis, run, operands, dims)
    return vmap_over(axis, run, dims, found)(*operands), found


def batch_once(
    function: Any,
    key: tuple[Hashable, ...],
    rule: Callable[..., Batched],
    operands: Sequence[Any],
    dims: Sequence[Any],
) -> Batched:
    """`rule(*operands)`, a function's batching rule, traced once to a jaxpr. The rule must depend
    on nothing except the operands, the dims and what is in the key, such as the axis."""

    def trace() -> tuple[Run, Run, list[Any]]:
        dims_out: list[Any] = []

        def run(*operands: Any) -> Sequence[Any]:
            results, dims_out[:] = rule(*operands)
            return results

        program = call_jaxpr(jax.make_jaxpr(run)(*operands))
        return program, jax.jit(program), dims_out

    types = tuple(map(jax.typeof, operands))
    program, compiled, dims_out = once(function, ("batched", *key, tuple(dims), types), trace)
    # Outside `jax.jit`, its constants would be sent to the device.
    run = program if any(map(is_traced, operands)) else compiled
    return run(*operands), dims_out


class Vmap(NamedTuple):
    """An axis that a function is mapped over: the axes of its operands, and of its results."""

    axis: Any
    dims: tuple[Any, ...]
    dims_out: tuple[Any, ...]


def mapped(
    run: Run,
    vmaps: Sequence[Vmap],
    more: Callable[[Vmap], Sequence[Any]] = lambda vmap: (),
    wanted: Callable[[Vmap], Sequence[Any]] | None = None,
) -> Run:
    """`run`, mapped over these axes, the innermost first. For each axis, `more` gives the batch
    axes of further operands, and `wanted` gives the results'. By default, results that do not
    depend on the example have none."""

    def over(vmap: Vmap, run: Run, *operands: Any) -> Sequence[Any]:
        dims = (*vmap.dims, *more(vmap))
        found = batched_dims(vmap.axis, run, operands, dims)
        wanted_dims = found if wanted is None else wanted(vmap)
        dims_out = [w if f is None else f for f, w in zip(found, wanted_dims, strict=True)]
        results = vmap_over(vmap.axis, run, dims, dims_out)(*operands)
        # All examples computed the same value, so keep the first.
        triples = zip(results, wanted_dims, dims_out, strict=True)
        return [x[0] if w is None and e is not None else x for x, w, e in triples]

    for vmap in vmaps:
        run = partial(over, vmap, run)
    return run


def within(vmaps: Sequence[Vmap], find: Callable[[], T]) -> T:
    """`find()`, which only traces, with these axes bound, because a loop's body may name them."""
    found: list[T] = []

    def run(_: Any) -> tuple[()]:
        found.append(find())
        return ()

    for vmap in vmaps:
        run = vmap_over(vmap.axis, run, (None,), ())
    jax.eval_shape(run, 0)
    return found[0]
