"""What the forward and the reverse sweep share: a program of this library as a primitive.

A batched sweep is recorded as the sweep of one example and the axes that it is mapped over, so that
its derivative is the derivative of one example's, mapped over the same axes. The sweep of a batched
loop would not do: it adds up the cotangents of operands that are not batched, where `jax.vmap` of
a gradient returns one for each example.

They are primitives because a `jax.custom_jvp` function loses its rule in the body of a `lax.scan`
that is linearized: up to 0.10 JAX looks there for what is the same at every step by partial
evaluation, which takes such functions apart.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from jax_revolve import _compat
from jax_revolve._compat import ClosedJaxpr, as_array, call_jaxpr
from jax_revolve.autodiff.batching import batched_dims, vmap_over
from jax_revolve.autodiff.family import Family, Flat, function_types
from jax_revolve.progress.listener import when_run_again
from jax_revolve.step.activity import Mask
from jax_revolve.step.loop import Loop
from jax_revolve.step.once import Batched, once

F = TypeVar("F", bound=Any)
Run = Callable[..., Flat]


class Vmap(NamedTuple):
    """An axis that a sweep is mapped over: the axes of its operands, and of its results."""

    axis: Any
    dims: tuple[Any, ...]
    dims_out: tuple[Any, ...]


class Active(NamedTuple):
    """Which operands of a sweep are differentiated, and which of its results have a tangent."""

    operands: Mask
    results: Mask


class SweepFamily(Family[F]):
    """A sweep with its derivatives. Functions have the fields `vmaps`, the innermost first, and
    `output_types`."""

    def __init__(self, name: str, prune: Any, prune_jvp: Any = None) -> None:
        primitive = _compat.new_primitive(
            name,
            implementation=self._run_sweep,
            output_types=function_types,
            batch=self._batch_sweep,
            prune=prune,
        )
        super().__init__(primitive, prune_jvp)

    @abstractmethod
    def of_one(self, function: F, *flat: Any) -> Flat:
        """The sweep of one example."""

    def traced(self, function: F, flat: Flat) -> ClosedJaxpr:
        """The sweep of all examples."""

        def trace() -> ClosedJaxpr:
            return jax.make_jaxpr(mapped(partial(self.of_one, function), function.vmaps))(*flat)

        bare = function._replace(output_types=())
        return once(bare, ("sweep", *map(jax.typeof, flat)), trace)

    def silent(self, function: F) -> F:
        return function._replace(loop=function.loop._replace(progress=None))

    def later(self, function: F) -> F:
        progress = when_run_again(function.loop.progress)
        return function._replace(loop=function.loop._replace(progress=progress))

    def run(self, function: F, operands: Flat) -> Flat:
        return self._function_p.bind(*map(as_array, operands), function=function)

    def batch(self, axis: Any, operands: Flat, dims: Flat, function: F) -> Batched:
        return self._batch_sweep(axis, operands, dims, function)

    def run_as_one(self, function: F, run: Any, operands: Flat) -> Flat:
        return run(function, operands)

    def primal_half(self, function: F, activity: Any) -> F:
        del activity
        return function

    def _run_sweep(self, *flat: Any, function: F) -> Flat:
        flat = tuple(map(as_array, flat))
        return call_jaxpr(self.traced(function, flat))(*flat)

    def _batch_sweep(self, axis: Any, flat: Flat, dims: Flat, function: F) -> Batched:
        flat = list(map(as_array, flat))

        def find() -> tuple[Vmap, tuple[Any, ...]]:
            run = mapped(partial(self.of_one, function), function.vmaps)
            dims_out = tuple(batched_dims(axis, run, flat, dims))
            vmap = Vmap(axis, tuple(dims), dims_out)
            outer = function._replace(vmaps=(*function.vmaps, vmap), output_types=())
            return vmap, tuple(self.traced(outer, flat).out_avals)

        key = ("batched sweep", axis, tuple(dims), *map(jax.typeof, flat))
        vmap, types = once(function, key, find)
        outer = function._replace(vmaps=(*function.vmaps, vmap), output_types=types)
        return self.run(outer, flat), vmap.dims_out

    def _batch_jvp(self, axis: Any, flat: Flat, dims: Flat, function: F, activity: Any) -> Batched:
        return self._batch_directions(axis, flat, dims, function, activity)


def once_more(loop: Loop) -> Loop:
    """The loop of a sweep, to be run and differentiated again."""
    return loop.run_again()._replace(progress=when_run_again(loop.progress), restart=None)


def mapped(
    run: Run,
    vmaps: Sequence[Vmap],
    more: Callable[[Vmap], Sequence[Any]] = lambda vmap: (),
    wanted: Callable[[Vmap], Sequence[Any]] | None = None,
) -> Run:
    """`run`, mapped over these axes. For each of them, `more` are the axes of the operands that it
    takes besides the sweep's, and `wanted` are the axes of its results: by default, results that do
    not depend on an example have none."""
    for vmap in vmaps:
        dims = (*vmap.dims, *more(vmap))
        run = partial(_mapped_over, vmap.axis, dims, wanted and wanted(vmap), run)
    return run


def _mapped_over(axis: Any, dims: Any, wanted: Any, run: Run, *operands: Any) -> Flat:
    found = batched_dims(axis, run, operands, dims)
    wanted = found if wanted is None else wanted
    either = [w if f is None else f for f, w in zip(found, wanted, strict=True)]
    results = vmap_over(axis, run, dims, either)(*operands)
    # What is computed for each example, but need not be, is the same for all.
    return [
        x[0] if w is None and e is not None else x
        for x, w, e in zip(results, wanted, either, strict=True)
    ]


def of_one_example(value: Any, vmaps: Sequence[Vmap], number: int) -> Any:
    """Result `number` of a sweep with an axis for each of the vmaps: it belongs to the first
    example where it has none, and the others have zeros."""
    for axis, (size, dim) in enumerate(
        (vmap.axis.size, vmap.dims_out[number]) for vmap in reversed(vmaps)
    ):
        if dim is None:
            value = jnp.expand_dims(value, axis)
            widths = [(0, size - 1) if i == axis else (0, 0) for i in range(value.ndim)]
            value = jnp.pad(value, widths)
    return value
