"""Programs for a single device, and for several that share their arrays."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr
from jax.interpreters import mlir

from jax_revolve._compat.jaxprs import call_jaxpr
from jax_revolve._compat.primitives import new_primitive


def on_single_cpus(
    whole: Callable[..., Sequence[Any]], shared: Callable[..., Sequence[Any]], *operands: Any
) -> Sequence[Any]:
    """`whole(*operands)` where the program is compiled for CPUs each of which has whole arrays: for
    a single one, or with parts that are arrays of their own, as in `jax.shard_map`. Otherwise
    `shared(*operands)`, which computes the same. As with `jax.lax.platform_dependent`, it is known
    when the program is lowered, not before."""
    programs = [jax.make_jaxpr(fun)(*operands) for fun in (whole, shared)]
    return on_single_cpus_p.bind(*operands, whole=programs[0], shared=programs[1])


def _batch(
    axis: Any, operands: Sequence[Any], dims: Sequence[Any], whole: ClosedJaxpr, shared: ClosedJaxpr
) -> Any:
    over = partial(
        jax.vmap,
        in_axes=tuple(dims),
        axis_name=axis.name,
        axis_size=axis.size,
        spmd_axis_name=axis.spmd_name,
    )
    results = on_single_cpus(over(call_jaxpr(whole)), over(call_jaxpr(shared)), *operands)
    return results, [0] * len(results)


on_single_cpus_p = new_primitive(
    "on_single_cpus",
    implementation=lambda *operands, whole, shared: call_jaxpr(shared)(*operands),
    output_types=lambda *_, whole, shared: (shared.out_avals, shared.effects),
    batch=_batch,
)


def _lower(ctx: Any, *operands: Any, whole: ClosedJaxpr, shared: ClosedJaxpr) -> Any:
    program = shared if _are_arrays_shared(ctx.module_context.axis_context) else whole
    return mlir.lower_fun(call_jaxpr(program), multiple_results=True)(ctx, *operands)


def _are_arrays_shared(context: Any) -> bool:
    """Whether the compiler may divide arrays. A `jax.shard_map` leaves it the mesh's axes that are
    not its own; elsewhere it has all of the devices; up to jax 0.8 `jax.pmap` is a third kind."""
    if hasattr(context, "manual_axes"):
        return set(context.mesh.axis_names) != set(context.manual_axes)
    return getattr(context, "num_devices", 1) != 1


mlir.register_lowering(on_single_cpus_p, _lower, platform="cpu")
