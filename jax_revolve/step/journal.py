"""Histories, and the journal that undoes what steps write to them.

A *history* is an array in the carry of which a step writes a few entries and reads others: the past
of a delay equation, keys and values of attention, a ring of buffers. A checkpoint need not hold it.
The forward sweep keeps a journal: for each step, where it wrote, and the entries that were there
before. The reverse sweep has one working copy of the history:

    restart at a checkpoint of step q:  undo the steps down to q in the copy
    advance:                            write to the copy again

So nothing need be known about where a step writes: indices may be clamped, dropped, repeated,
negative, or depend on data, and entries may be read before they are written. Each write has the old
entries of the version that it wrote to, so a step is undone bit for bit, the last write first. That
also holds for writes that a select skipped: where they leave other entries, an earlier write of the
step has those that were there.

The journal is further ys of the step: `Journal.loop` is the loop whose step also returns them.
Every trace of that step has them, also of examples that are done (`examples`), and JAX
differentiates them as it does all that a forward sweep saves.

Indices that follow from xs, consts and counters in the carry are computed again. Where indices may
depend on floats, a step that is run again may round to others. So these steps are logged again when
they are advanced in the reverse sweep.
"""

from collections.abc import Sequence
from functools import cached_property
from operator import gt
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import ClosedJaxpr, is_literal, variables
from jax_revolve._compat.values import (
    AbstractValue,
    bytes_of,
    explicit_mesh,
    pick,
    zeros,
)
from jax_revolve.jaxprs.evaluate import run_each, run_in_place
from jax_revolve.jaxprs.parts import between, part_of
from jax_revolve.jaxprs.walk import inner_programs
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.cpu import run_reads_first
from jax_revolve.step.linearized import Activity, Linearized
from jax_revolve.step.loop import Loop, Mask, Operands, once
from jax_revolve.step.updates import (
    entries_at,
    indices,
    path,
    reads,
    updated,
    with_entries,
    with_slices,
    writes,
)
from jax_revolve.storage.buffers import read


class Journal:
    """The journal of these leaves of a loop's carry. It holds no arrays."""

    def __init__(self, loop: Loop, mask: Mask) -> None:
        self.mask, self._plain, self._closed = mask, loop, with_slices(loop.jaxpr)
        jaxpr = self._closed.jaxpr
        first = loop.num_condition_consts
        self._inputs = loop.operands([*[None] * first, *jaxpr.invars])
        results, _ = loop.results(jaxpr.outvars)
        self._writes = [
            _writes(jaxpr, *each) for each in zip(self._inputs.carry, results, strict=True)
        ]
        found = (variables(indices(eqn, eqn.invars)) for eqn in self._all_writes)
        at = list(dict.fromkeys(v for each in found for v in each))
        known = self._exact(self._known_inputs) if loop.condition is None else set[Any]()
        self._known = [v for v in at if v in known]
        self._logged = [v for v in at if v not in known]
        self.logs_again = not self._exact(self._exact_inputs).issuperset(self._logged)

    @property
    def _all_writes(self) -> list[Any]:
        return [eqn for writes in pick(self._writes, self.mask) for eqn in writes]

    # Indices that need not be logged

    @cached_property
    def _counters(self) -> dict[Any, Any]:
        """The numbers of the carry to which each step adds the same integer, with that."""
        found, (consts, carry, _) = dict[Any, Any](), self._inputs
        makers = {eqn.outvars[0]: eqn for eqn in self._closed.eqns if eqn.primitive.name == "add"}
        for leaf, result in zip(carry, self._closed.jaxpr.outvars, strict=False):
            eqn = None if is_literal(result) else makers.get(result)
            if eqn is not None and not leaf.aval.shape and _is_exact(leaf):
                others = [v for v in eqn.invars if v is not leaf]
                if len(others) == 1 and (is_literal(others[0]) or others[0] in consts):
                    found[leaf] = others[0]
        return found

    @property
    def _known_inputs(self) -> list[Any]:
        return [*self._inputs.consts, *self._counters, *self._inputs.xs]

    @property
    def _exact_inputs(self) -> list[Any]:
        """The inputs of a step that are the same whenever it runs: the integers of the carry that
        are computed from integers alone."""
        consts, carry, xs = self._inputs
        chosen = list(filter(_is_exact, carry))
        while True:
            exact = self._exact([*consts, *chosen, *xs])
            after = zip(carry, self._closed.jaxpr.outvars, strict=False)
            kept = [v for v, new in after if v in chosen and (is_literal(new) or new in exact)]
            if kept == chosen:
                return [*consts, *kept, *xs]
            chosen = kept

    def _exact(self, inputs: Sequence[Any]) -> set[Any]:
        """The variables that follow from these inputs by operations with integers."""
        given = [*self._closed.jaxpr.constvars, *(v for v in inputs if v is not None)]
        exact = set(filter(_is_exact, given))
        for eqn in self._closed.eqns:
            is_integer = all(map(_is_exact, [*eqn.invars, *eqn.outvars]))
            is_plain = is_integer and not eqn.effects and not inner_programs(eqn)
            if is_plain and exact.issuperset(variables(eqn.invars)):
                exact.update(eqn.outvars)
        return exact

    # The loop whose step also returns what it writes to the journal

    @cached_property
    def loop(self) -> Loop:
        """Its further ys are the indices that are logged, and the old entries of each write."""
        writes = set(map(id, self._all_writes))

        def step(*inputs: Any) -> list[Any]:
            at, old = dict[Any, Any](), dict[int, Any]()

            def run(eqn: Any, operands: list[Any]) -> Sequence[Any]:
                if id(eqn) in writes:
                    values = indices(eqn, operands)
                    pairs = zip(indices(eqn, eqn.invars), values, strict=True)
                    at.update((v, x) for v, x in pairs if not is_literal(v))
                    old[id(eqn)] = entries_at(eqn, operands[0], values)
                return run_in_place(eqn, operands)

            results = run_each(self._closed, inputs, run)
            olds = (old[id(eqn)] for eqn in self._all_writes)
            return [*results, *(at[v] for v in self._logged), *olds]

        jaxpr, length = jax.make_jaxpr(step)(*self._closed.in_avals), self._plain.length or 0
        types = jaxpr.out_avals[len(self._plain.output_types) :]
        types = [t.update(shape=(length, *t.shape)) for t in types]
        return self._plain._replace(jaxpr=jaxpr, output_types=(*self._plain.output_types, *types))

    @property
    def size(self) -> int:
        """The number of entries of a step."""
        return len(self._logged) + len(self._all_writes)

    @property
    def types(self) -> list[AbstractValue]:
        """The types of the entries of a step."""
        return self.loop.jaxpr.out_avals[len(self._plain.output_types) :]

    def active(self, activity: Activity) -> Activity:
        """The activity of that loop. Nothing differentiates the entries here."""
        return activity._replace(ys=(*activity.ys, *[False] * self.size))

    def without(self, restart: Mask) -> Mask:
        """The leaves of a restart set that checkpoints hold."""
        return tuple(map(gt, restart, self.mask))

    def empty(self) -> list[Any]:
        length = self._plain.length
        return [jnp.broadcast_to(z, (length, *z.shape)) for z in map(zeros, self.types)]

    @property
    def bytes(self) -> int:
        """Of the entries of all steps, and of the histories at the end."""
        old = [eqn.invars[updated(eqn)].aval for eqn in self._all_writes]
        entries = bytes_of([*(v.aval for v in self._logged), *old])
        leaves = bytes_of(v.aval for v in pick(self._inputs.carry, self.mask))
        return (self._plain.length or 0) * entries + leaves

    def versions(self, step: Linearized) -> dict[Any, Any]:
        """The leaf of which each variable of a step is a version."""
        found = {v: v for v in pick(step.carry, self.mask)}
        for eqn in step.closed.eqns:
            at = [found[v] for v in variables(eqn.invars) if v in found]
            first = eqn.invars[:1]
            is_write = at and found.keys() >= {*variables(first)} and writes(eqn, *first)
            if is_write or (at and eqn.primitive.name == "select_n"):
                found[eqn.outvars[0]] = at[0]
        return found

    # Running a step

    def run(self, step: Linearized, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """These variables of a step of `loop`, from the inputs of `step.closed`. Entries are read
        before others are written, so that XLA need not copy the history."""
        closed = step.closed
        jaxpr = closed.jaxpr.replace(
            eqns=between(closed.jaxpr, [], outputs, [e for e in closed.eqns if e.effects]),
            outvars=list(outputs),
        )
        versions, pairs = self.versions(step), list[tuple[Any, list[Any]]]()
        for i, eqn in enumerate(jaxpr.eqns):
            if eqn.outvars[0] in versions and eqn.primitive.name != "select_n":
                array = eqn.invars[0]
                pairs.append((eqn, [each for each in jaxpr.eqns[:i] if reads(each, array)]))
        return run_reads_first(ClosedJaxpr(jaxpr, closed.consts), pairs, *inputs)

    def before(
        self,
        operands: Operands,
        histories: list[Any],
        entries: list[Any],
        at: Any,
        goes_on: Any = None,
    ) -> list[Any]:
        """The histories before step number `at`, from those after it and what the step logged; the
        same as they are unless it `goes_on`."""
        values = dict(zip(self._logged, entries, strict=False))
        values.update(zip(self._known, self._indices(operands, at), strict=True))
        old, undone = iter(entries[len(self._logged) :]), list[Any]()
        for leaf, equations in zip(histories, pick(self._writes, self.mask), strict=True):
            # The last write first: each has the entries of the version that it wrote to.
            for eqn, were in reversed([(eqn, next(old)) for eqn in equations]):
                given = [v.val if is_literal(v) else values[v] for v in indices(eqn, eqn.invars)]
                if goes_on is not None:
                    were = lax.select(goes_on, were, entries_at(eqn, leaf, given))
                leaf = with_entries(eqn, leaf, given, were)
            undone.append(leaf)
        return undone

    def _indices(self, operands: Operands, at: Any) -> list[Any]:
        """The known indices of step number `at`."""
        loop, (consts, carry, xs) = self._plain, self._inputs
        used = {v for eqn in self._of_known for v in variables(eqn.invars)}.union(self._known)
        values = {v: x for v, x in zip(consts, operands.consts, strict=True) if v is not None}
        for v, x in zip(carry, operands.carry, strict=True):
            if v in used and v in self._counters:
                each = self._counters[v]
                each = each.val if is_literal(each) else values[each]
                values[v] = x + lax.convert_element_type(at, x.dtype) * each
        for v, x in zip(xs, operands.xs, strict=True):
            if v in used:
                (values[v],) = read([x], loop.entry(at))
        values = {v: x for v, x in values.items() if v in used}
        return part_of(self._closed, list(values), self._known)(list(values.values()))

    @cached_property
    def _of_known(self) -> list[Any]:
        return between(self._closed.jaxpr, self._known_inputs, self._known)


def _writes(jaxpr: Any, before: Any, after: Any) -> list[Any]:
    return [eqn for eqn in path(jaxpr, before, after) if eqn.primitive.name != "select_n"]


def _is_exact(v: Any) -> bool:
    dtype = getattr(v.aval, "dtype", jnp.float32)
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.integer, jnp.bool_))


def journal_of(loop: Loop, mask: Mask) -> Journal | None:
    """The journal of these leaves of the carry, if there are any."""
    if not any(mask):
        return None
    return once(loop.bare, ("journal", mask), lambda: Journal(loop.bare, mask))


def histories(loop: Loop, step: Linearized) -> Mask:
    """The leaves of a checkpoint that may be undone by a journal."""
    none = (False,) * loop.num_carry
    if loop.length is None or loop.inverse is not None or not any(step.restart):
        return none
    jaxpr = with_slices(loop.jaxpr).jaxpr
    carry = loop.operands([*[None] * loop.num_condition_consts, *jaxpr.invars]).carry

    def is_history(stored: bool, before: Any, after: Any) -> bool:
        type_ = before.aval
        is_plain = not jnp.issubdtype(type_.dtype, jax.dtypes.extended)
        return (
            stored
            and is_plain
            and explicit_mesh([type_]) is None
            and bool(_writes(jaxpr, before, after))
        )

    return tuple(map(is_history, step.restart, carry, jaxpr.outvars))


def cheaper(loop: Loop, leaves: Mask, plan: Plan, operands: Operands) -> Mask:
    """The leaves whose journal takes fewer bytes than the slots of a plan, besides slot 0."""
    slots = plan.checkpoints_on_device - 1

    def pays(number: int) -> bool:
        journal = journal_of(loop, tuple(i == number for i in range(len(leaves))))
        assert journal is not None
        return journal.bytes < slots * bytes_of([jax.typeof(operands.carry[number])])

    return tuple(leaf and pays(i) for i, leaf in enumerate(leaves))
