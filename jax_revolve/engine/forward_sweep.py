"""The slots engine's forward sweep as a primitive, so that ys that nobody uses are not computed.

JAX tells a primitive which of its results are used. XLA does not find out by itself that a loop
inside a loop only carries a buffer along.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from jax_revolve._compat import as_array, new_primitive, results_of, with_weak_type
from jax_revolve.engine.batching import batched_dims, vmap_over
from jax_revolve.engine.loop import Loop, choose, substitute
from jax_revolve.engine.slots import empty, run_forward


def run_forward_sweep(loop: Loop, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The loop's results, and the slots."""
    operands = [as_array(x) for x in operands]
    num_results = len(loop.output_types)
    carry = loop.operands(operands).carry
    flat = forward_sweep_p.bind(
        *operands,
        keep_ys=(True,) * (num_results - loop.num_carry),
        slot_types=tuple(r.aval for r in results_of(lambda: empty(loop, carry))),
        **loop.params(),
    )
    return flat[:num_results], flat[num_results:]


def _implementation(
    *operands: Any, keep_ys: tuple[bool, ...], slot_types: Any, **params: Any
) -> Sequence[Any]:
    del slot_types
    loop = Loop(**params)
    results, held = run_forward(loop, loop.operands(operands), keep_ys)
    types = _kept_types(loop, keep_ys)
    return [*map(with_weak_type, results, types), *held]


def _output_types(*_: Any, keep_ys: tuple[bool, ...], slot_types: Any, **params: Any) -> Any:
    loop = Loop(**params)
    return [*_kept_types(loop, keep_ys), *slot_types], loop.body_effects


def _batch(axis: Any, operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
    run = partial(_implementation, **params)
    dims_out = batched_dims(axis, run, operands, dims)
    return vmap_over(axis, run, dims, dims_out)(*operands), dims_out


def _prune(used: list[bool], *, keep_ys: tuple[bool, ...], **params: Any) -> Any:
    num_carry, num_ys = params["num_carry"], sum(keep_ys)
    used_ys = used[num_carry : num_carry + num_ys]
    kept = [*[True] * num_carry, *used_ys, *[True] * num_carry]
    return kept, {**params, "keep_ys": tuple(substitute(keep_ys, keep_ys, used_ys))}


def _kept_types(loop: Loop, keep_ys: tuple[bool, ...]) -> list[Any]:
    carry, ys = loop.results(loop.output_types)
    return [*carry, *choose(ys, keep_ys)]


forward_sweep_p = new_primitive(
    "checkpointed_loop_forward_sweep",
    implementation=_implementation,
    output_types=_output_types,
    batch=_batch,
    prune=_prune,
)
