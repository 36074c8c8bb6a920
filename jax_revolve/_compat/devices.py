"""Programs for one device, and for several that share their arrays."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import mlir

from jax_revolve._compat.primitives import new_primitive


def by_layout(
    whole: Callable[..., Sequence[Any]], shared: Callable[..., Sequence[Any]], *operands: Any
) -> Sequence[Any]:
    """`shared(*operands)` where the program is compiled for several devices among which the
    compiler may divide the operands, `whole(*operands)` where each device has whole ones: on a
    single one, or with parts that are arrays of their own, as in `jax.shard_map`. Both compute the
    same. As `jax.lax.platform_dependent` it is known when the program is lowered, not before."""
    programs = [jax.make_jaxpr(fun)(*operands) for fun in (whole, shared)]
    return by_layout_p.bind(*operands, whole=programs[0], shared=programs[1])


def text_of(lowered: jax.stages.Lowered) -> str:
    """The program, without the values of large constants: what it takes depends on shapes."""
    module: Any = lowered.compiler_ir()
    return module.operation.get_asm(large_elements_limit=1000)


def _run(*operands: Any, whole: ClosedJaxpr, shared: ClosedJaxpr) -> Sequence[Any]:
    del whole
    return jaxpr_as_fun(shared)(*operands)


def _types(*_: Any, whole: ClosedJaxpr, shared: ClosedJaxpr) -> Any:
    del whole
    return shared.out_avals, shared.effects


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
    results = by_layout(over(jaxpr_as_fun(whole)), over(jaxpr_as_fun(shared)), *operands)
    return results, [0] * len(results)


by_layout_p = new_primitive("by_layout", implementation=_run, output_types=_types, batch=_batch)


def _lower(ctx: Any, *operands: Any, whole: ClosedJaxpr, shared: ClosedJaxpr) -> Any:
    program = shared if _are_arrays_shared(ctx.module_context.axis_context) else whole
    return mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(ctx, *operands)


def _are_arrays_shared(context: Any) -> bool:
    """Whether the compiler may divide arrays. A `jax.shard_map` leaves it the mesh's axes that are
    not its own; elsewhere it has all of the devices; up to jax 0.8 `jax.pmap` is a third kind."""
    if hasattr(context, "manual_axes"):
        return set(context.mesh.axis_names) != set(context.manual_axes)
    return getattr(context, "num_devices", 1) != 1


mlir.register_lowering(by_layout_p, _lower)
