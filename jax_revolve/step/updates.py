"""What a step does to an array: equations that read and write some of its entries (slices, gathers
and scatters), and the path of a leaf of the carry from the start of a step to its end.

| a step | path of the leaf | in the reverse sweep |
|---|---|---|
| never touches it | no equation | in no checkpoint, if nothing else needs it |
| only writes entries | writes, no other use (`Uses.chain`) | in no checkpoint |
| writes and reads entries | writes, and selects between versions (`path`) | in a journal or slots |
| replaces it | anything else | in slots |
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import is_literal, variables
from jax_revolve._compat.values import explicit_mesh
from jax_revolve.jaxprs.evaluate import run_equation
from jax_revolve.jaxprs.inline import inlined
from jax_revolve.step.operations import having

_READS, _WRITES = having("reads"), having("writes")


def is_read(eqn: Any) -> bool:
    return eqn.primitive.name in _READS


def reads(eqn: Any, array: Any) -> bool:
    """Whether an equation reads entries of this array, and does not use it otherwise."""
    return is_read(eqn) and _is_first_alone(eqn, array)


def writes(eqn: Any, array: Any) -> bool:
    """Whether an equation returns this array with some entries replaced or added to."""
    return eqn.primitive.name in _WRITES and _is_first_alone(eqn, array)


def _is_first_alone(eqn: Any, array: Any) -> bool:
    return eqn.invars[0] is array and array not in eqn.invars[1:]


def path(jaxpr: Any, before: Any, after: Any) -> list[Any]:
    """The equations that make the leaf after a step of the leaf before it, if they only write
    entries and select between versions of the leaf; none if it changes in any other way."""
    versions: dict[Any, dict[int, Any]] = {before: {}}
    for eqn in jaxpr.eqns:
        arrays = eqn.invars[1:] if eqn.primitive.name == "select_n" else eqn.invars[:1]
        found = [None if is_literal(v) else versions.get(v) for v in arrays]
        is_select = eqn.primitive.name == "select_n" and None not in found
        if is_select or (found and found[0] is not None and writes(eqn, eqn.invars[0])):
            so_far = {key: each for part in found for key, each in (part or {}).items()}
            versions[eqn.outvars[0]] = {**so_far, id(eqn): eqn}
    return [] if is_literal(after) else list(versions.get(after, {}).values())


class Uses:
    """Which equations of a jaxpr use each variable, except reads of these results."""

    def __init__(self, closed: Any, without: Sequence[Any] = ()) -> None:
        self._closed, self._results = closed, closed.jaxpr.outvars
        self._uses: dict[Any, list[Any]] = defaultdict(list)
        for eqn in closed.jaxpr.eqns:
            if is_read(eqn) and eqn.outvars[0] in without:
                continue
            for v in dict.fromkeys(variables(eqn.invars)):
                self._uses[v].append(eqn)

    def chain(self, array: Any, result: Any) -> list[Any]:
        """The equations that write from the array to the result, one after the other; none unless
        all may be left out and the array has no other use than reads before the first."""
        chain: list[Any] = []
        while array is not result:
            writer, readers = self._writer(array)
            if writer is None or (chain and readers) or not may_be_left_out(writer):
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


def indices(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Which of these operands say where an equation writes."""
    return list(operands[2:] if eqn.primitive.name == "dynamic_update_slice" else operands[1:2])


def _typed(eqn: Any, at: Sequence[Any]) -> list[Any]:
    """These indices with the types of an equation's, of which some may be literals."""
    types = (v.aval.dtype for v in indices(eqn, eqn.invars))
    return list(map(lax.convert_element_type, at, types))


def entries_at(eqn: Any, array: Any, at: Sequence[Any]) -> jax.Array:
    """The entries of an array that an equation would write at these indices."""
    shape, params = eqn.invars[updated(eqn)].aval.shape, eqn.params
    at = _typed(eqn, at)
    if eqn.primitive.name == "dynamic_update_slice":
        return lax.dynamic_slice(array, at, shape, allow_negative_indices=False)
    numbers = params["dimension_numbers"]
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = iter(numbers.update_window_dims)
    sizes = [1 if i in single else shape[next(windows)] for i in range(array.ndim)]
    of_gather = lax.GatherDimensionNumbers(
        numbers.update_window_dims,
        numbers.inserted_window_dims,
        numbers.scatter_dims_to_operand_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
    )
    how = {name: params[name] for name in _HOW}
    return lax.gather(array, at[0], of_gather, tuple(sizes), **how, fill_value=0)


def with_entries(eqn: Any, array: Any, at: Sequence[Any], entries: Any) -> jax.Array:
    """The array with these entries where an equation would write at these indices."""
    at = _typed(eqn, at)
    if eqn.primitive.name == "dynamic_update_slice":
        return lax.dynamic_update_slice(array, entries, at, allow_negative_indices=False)
    how = {name: eqn.params[name] for name in _HOW}
    return lax.scatter(array, at[0], entries, eqn.params["dimension_numbers"], **how)


_HOW = ("indices_are_sorted", "unique_indices", "mode")


def may_be_left_out(eqn: Any) -> bool:
    """Whether `write_unless` can compute what an equation on a path does."""
    array, *operands = (v.aval for v in eqn.invars)
    if eqn.primitive.name == "select_n":  # between equal versions then
        return True
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return False
    if eqn.primitive.name == "dynamic_update_slice":
        _, *at = operands
        return bool(at) and all(map(_is_signed, at))
    if eqn.primitive.name == "scatter" and eqn.params["update_jaxpr"] is not None:
        return False  # `x.at[i].apply(f)`, which writes f of the old entries
    at, _ = operands
    clips = eqn.params["mode"] == lax.GatherScatterMode.CLIP
    return not clips and at.shape[-1] > 0 and _is_signed(at)


def _is_signed(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.signedinteger)


def write_unless(left_out: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    """The result of an equation that writes or, if `left_out`, the array unchanged, by writing to
    an index that does not exist. That has no derivative, and does not make XLA copy the array, as a
    select between the array before and after would."""
    mode = lax.GatherScatterMode.FILL_OR_DROP
    if eqn.primitive.name != "dynamic_update_slice":
        array, at, update = operands
        at = lax.select(left_out, lax.full_like(at, -1), at)
        return run_equation(eqn, [array, at, update], mode=mode)
    array, update, *starts = operands
    axes = tuple(range(array.ndim))
    at = _inside(starts, array.shape, update.shape)
    return lax.scatter(
        array,
        lax.select(left_out, lax.full_like(at, -1), at),
        update,
        lax.ScatterDimensionNumbers(axes, (), axes),
        indices_are_sorted=True,
        unique_indices=True,
        mode=mode,
    )


def _inside(starts: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]) -> Any:
    """The index of a slice, moved so that the whole slice is inside the array."""
    dtype = jnp.result_type(jnp.int32, *starts)
    moved = [
        lax.clamp(dtype.type(0), lax.convert_element_type(start, dtype), dtype.type(n - size))
        for start, n, size in zip(starts, shape, sizes, strict=True)
    ]
    return lax.concatenate([lax.broadcast(start, (1,)) for start in moved], 0)
