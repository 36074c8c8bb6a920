"""Equations that read and write some entries of an array: slices, gathers and scatters."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import is_literal, variables
from jax_revolve._compat.values import explicit_mesh
from jax_revolve.jaxprs.inline import inlined
from jax_revolve.step.operations import having

_READS, _WRITES = having("reads"), having("writes")


def reads(eqn: Any, array: Any) -> bool:
    """Whether an equation reads entries of this array, and does not use it otherwise."""
    return eqn.primitive.name in _READS and _is_first_alone(eqn, array)


def writes(eqn: Any, array: Any) -> bool:
    """Whether an equation returns this array with some entries replaced or added to."""
    return eqn.primitive.name in _WRITES and _is_first_alone(eqn, array)


def _is_first_alone(eqn: Any, array: Any) -> bool:
    return eqn.invars[0] is array and array not in eqn.invars[1:]


class Uses:
    """Which equations of a jaxpr use each variable."""

    def __init__(self, closed: Any) -> None:
        self._closed, self._results = closed, closed.jaxpr.outvars
        self._uses: dict[Any, list[Any]] = defaultdict(list)
        for eqn in closed.jaxpr.eqns:
            for v in dict.fromkeys(variables(eqn.invars)):
                self._uses[v].append(eqn)

    def chain(self, array: Any, result: Any) -> list[Any]:
        """The equations that write from the array to the result, one after the other; none unless
        all may be left out and the array has no other use than reads before the first."""
        chain: list[Any] = []
        while array is not result:
            writer, readers = self._writer(array)
            if writer is None or (chain and readers) or not _may_be_left_out(writer):
                return []
            chain.append(writer)
            (array,) = writer.outvars
        return [] if self._uses[array] or self._results.count(array) > 1 else chain

    def writes_with_reads(self) -> list[tuple[Any, list[Any]]]:
        """Each equation that writes entries of an array, with the equations that read as many of
        its entries, if the array has no other use and the reads can all run before the write."""
        found: list[tuple[Any, list[Any]]] = []
        known = {*self._closed.jaxpr.constvars, *self._closed.jaxpr.invars}
        for eqn in self._closed.jaxpr.eqns:
            if eqn.primitive.name in _WRITES and not is_literal(eqn.invars[0]):
                writer, readers = self._writer(eqn.invars[0])
                inputs = (v for reader in readers for v in variables(reader.invars))
                if writer is eqn and readers and known.issuperset(inputs):
                    shape = eqn.invars[updated(eqn)].aval.shape
                    if all(reader.outvars[0].aval.shape == shape for reader in readers):
                        found.append((eqn, readers))
            known.update(eqn.outvars)
        return found

    def _writer(self, array: Any) -> tuple[Any, list[Any]]:
        """The equation that writes to an array, and those that read from it; `None` if the array
        has other uses, or an explicit mesh, where the types of entries depend on the layout."""
        if explicit_mesh([array.aval]) is not None:
            return None, []
        readers = [eqn for eqn in self._uses[array] if reads(eqn, array)]
        others = [eqn for eqn in self._uses[array] if not reads(eqn, array)]
        if len(others) != 1 or not writes(others[0], array) or array in self._results:
            return None, []
        return others[0], readers


def with_slices(closed: Any) -> Any:
    """The jaxpr with functions under `jax.jit` inlined, because they may read or write entries."""
    return inlined(closed, ("jit",))


def updated(eqn: Any) -> int:
    """Which operand an equation writes."""
    return 1 if eqn.primitive.name == "dynamic_update_slice" else 2


def _may_be_left_out(eqn: Any) -> bool:
    """Whether `write_unless` can compute what an equation does."""
    array, *operands = (v.aval for v in eqn.invars)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return False
    if eqn.primitive.name == "dynamic_update_slice":
        _, *indices = operands
        return bool(indices) and all(map(_is_signed, indices))
    if eqn.primitive.name == "scatter" and eqn.params["update_jaxpr"] is not None:
        return False  # `x.at[i].apply(f)`, which writes f of the old entries
    indices, _ = operands
    clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP
    return not clips and indices.shape[-1] > 0 and _is_signed(indices)


def _is_signed(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.signedinteger)


def write_unless(left_out: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    """The result of an equation that writes or, if `left_out`, the array unchanged, by writing to
    an index that does not exist. That has no derivative, and does not make XLA copy the array, as a
    select between the array before and after would."""
    if eqn.primitive.name == "dynamic_update_slice":
        array, update, *starts = operands
        axes = tuple(range(array.ndim))
        numbers = lax.ScatterDimensionNumbers(axes, (), axes)
        indices = _inside(starts, array.shape, update.shape)
        write, is_sorted, is_unique = lax.scatter, True, True
    else:
        array, indices, update = operands
        numbers = eqn.params["dimension_numbers"]
        write = lax.scatter if eqn.primitive.name == "scatter" else lax.scatter_add
        is_sorted, is_unique = eqn.params["indices_are_sorted"], eqn.params["unique_indices"]
    return write(
        array,
        lax.select(left_out, lax.full_like(indices, -1), indices),
        update,
        numbers,
        indices_are_sorted=is_sorted,
        unique_indices=is_unique,
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )


def _inside(starts: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]) -> Any:
    """The index of a slice, moved so that the whole slice is inside the array."""
    dtype = jnp.result_type(jnp.int32, *starts)
    moved = [
        lax.clamp(dtype.type(0), lax.convert_element_type(start, dtype), dtype.type(n - size))
        for start, n, size in zip(starts, shape, sizes, strict=True)
    ]
    return lax.concatenate([lax.broadcast(start, (1,)) for start in moved], 0)
