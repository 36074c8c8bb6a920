"""While loops under `vmap`, whose examples take different numbers of steps.

A loop whose condition depends on the example runs until the last example is done. We reduce its
predicate over the batch to a scalar: a batched predicate would make JAX run both branches of every
`cond`, and select whole slot buffers. Instead, each example that is done keeps its carry by a
select:

    carry = where(done, carry, step(consts, carry))

The step is still computed for examples that are done, and a select drops the result. That serves
values and forward mode. Reverse mode does not: the step may have no derivative at the state where
an example stopped, and zero times infinity is not zero. So the operands of the step are *marked*:

    step(mark(done, consts), mark(done, carry))

A mark is the identity, and costs nothing. Only where the step is linearized does it give an example
that is done another value, at which the step has a derivative (`run_marked`): its own initial
carry. There the step ran, unless the example was done from the start. Consts keep their values, but
get no cotangents from an example that is done. Only if examples share a differentiated const, whose
cotangent is a sum over examples, does one that never ran need consts and a carry of another example
(`safe_operands`).

If examples see each other in a step, as by `lax.psum`, what they see is computed from each
example's own values, as in lax. So there, a derivative that does not exist where an example stopped
may make NaN.

XLA writes a few entries of a large array, such as a trajectory, in place, but a select would copy
the array in each step. So if a step only reads and writes entries of an array, it writes none for
examples that are done, and what it reads is marked.

Only booleans and values without tangents pass through the `custom_vmap` functions, so JAX can
differentiate around them. Without `vmap`, these values are constants and cost nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from jax_revolve._compat.interpreters import names_axes
from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, is_literal, variables
from jax_revolve._compat.primitives import new_primitive
from jax_revolve._compat.values import is_zero, pick, substitute, varying_axes
from jax_revolve.jaxprs.evaluate import run_each, run_in_place
from jax_revolve.jaxprs.parts import between, part_of
from jax_revolve.step.loop import Loop, Mask, Operands, Step, is_inexact, once
from jax_revolve.step.mixing import mixes_examples
from jax_revolve.step.updates import (
    Uses,
    is_read,
    may_be_left_out,
    path,
    reads,
    with_slices,
    write_unless,
    writes,
)


@custom_vmap
def any_example(going: jax.Array) -> jax.Array:
    """Whether the loop goes on for any example. Never batched."""
    return going


@any_example.def_vmap
def _(axis_size: int, batched: Sequence[bool], going: jax.Array) -> tuple[jax.Array, bool]:
    del axis_size
    return any_example(jnp.any(going, axis=0) if batched[0] else going), False


@custom_vmap
def done(going: jax.Array) -> jax.Array:
    """Which examples are done while the loop still runs; none without `vmap`."""
    return jnp.zeros_like(going)


@done.def_vmap
def _(axis_size: int, batched: Sequence[bool], going: jax.Array) -> tuple[jax.Array, bool]:
    del axis_size
    return (~going, True) if batched[0] else (done(going), False)


# Marks


def mark(is_done: Any, value: Any) -> Any:
    """The value, which another one may replace for examples that are done. A value that is the same
    on all devices, where examples differ, cannot be replaced."""
    if not varying_axes(jax.typeof(is_done)) <= varying_axes(jax.typeof(value)):
        return value
    return mark_p.bind(is_done, value, axes=())[0]


def _mapped(
    axis: Any, flags: Any, of_flags: int | None, of_values: int | None, axes: tuple[int, ...]
) -> tuple[Any, tuple[int, ...]]:
    """The flags of values that are mapped over one more axis, and the axes that they have there. If
    all examples on this axis share the values, these are done when all of them are."""
    if of_values is None:
        return (flags if of_flags is None else jnp.all(flags, axis=of_flags)), axes
    if of_flags is None:
        flags = jnp.broadcast_to(flags, (axis.size, *flags.shape))
    else:
        flags = jnp.moveaxis(flags, of_flags, 0)
    return flags, (of_values, *(i + (i >= of_values) for i in axes))


def _batch_mark(axis: Any, operands: Any, dims: Any, axes: tuple[int, ...]) -> Any:
    (is_done, value), (of_flags, of_value) = operands, dims
    if of_value is None and of_flags is not None and not value.ndim and is_inexact(value):
        # Each example gets a copy of a number, so that its cotangent can be dropped by itself.
        value, of_value = jnp.broadcast_to(value, (axis.size,)), 0
    is_done, axes = _mapped(axis, is_done, of_flags, of_value, axes)
    return mark_p.bind(is_done, value, axes=axes), [of_value]


def _jvp_of_mark(primals: Any, tangents: Any, axes: tuple[int, ...]) -> Any:
    is_done, dot = primals[0], tangents[1]
    dots = [dot] if is_zero(dot) else mark_p.bind(is_done, dot, axes=axes)
    return mark_p.bind(*primals, axes=axes), dots


mark_p = new_primitive(
    "checkpointed_mark",
    implementation=lambda is_done, value, axes: [value],
    output_types=lambda is_done, value, axes: ([value], frozenset()),
    batch=_batch_mark,
    jvp=_jvp_of_mark,
    transpose=lambda cotangents, is_done, value, axes: [None, *cotangents],
)
"""The value, whose `axes` are, one by one, those of the flags."""


def _batch_instead(axis: Any, operands: Any, dims: Any, axes: tuple[int, ...]) -> Any:
    (is_done, *values), (of_flags, *of_values) = operands, dims
    dim = None if of_values == [None, None] else 0
    if dim is not None:  # for both, of which one may be shared
        both = jax.vmap(lambda *xs: xs, tuple(of_values), axis_size=axis.size)
        values = both(*values)
    is_done, axes = _mapped(axis, is_done, of_flags, dim, axes)
    return instead_p.bind(is_done, *values, axes=axes), [dim]


def _jvp_of_instead(primals: Any, tangents: Any, axes: tuple[int, ...]) -> Any:
    is_done, dot = primals[0], tangents[2]
    dots = [dot if is_zero(dot) else select(is_done, jnp.zeros_like(dot), dot, axes)]
    return [primals[1]], dots  # so it is the same in each step, as are residuals that depend on it


instead_p = new_primitive(
    "checkpointed_instead",
    implementation=lambda is_done, instead, value, axes: [instead],
    output_types=lambda is_done, instead, value, axes: ([instead], frozenset()),
    batch=_batch_instead,
    jvp=_jvp_of_instead,
)
"""The first value, with the derivative of the second, except for examples that are done."""


def select(is_done: Any, new: Any, old: Any, axes: Sequence[int]) -> Any:
    """The new values where the flags say so. The flags have these axes of the values."""
    if not axes:
        return lax.select(is_done, new, old)
    first, *rest = axes
    inner = [i - (i > first) for i in rest]
    run = lambda d, n, o: select(d, n, o, inner)  # noqa: E731
    return jax.vmap(run, (0, first, first), first)(is_done, new, old)


def run_marked(
    closed: ClosedJaxpr, inputs: Sequence[Any], safe: Sequence[Any], active: Sequence[bool]
) -> list[Any]:
    """The results of a marked jaxpr, for a reverse sweep. Examples that are done compute from the
    safe inputs where these are marked, and from what is read from them. The first inputs are
    consts, of which some are active."""
    invars: list[Any] = list(closed.jaxpr.invars)
    changes, others = set(invars[len(active) :]), dict[Any, Any](zip(invars, safe, strict=True))
    fixed = {v for v, a in zip(invars, active, strict=False) if not a}
    read: dict[Any, Any] = {}

    def run(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if eqn.primitive is not mark_p:
            array = eqn.invars[0] if eqn.invars and not is_literal(eqn.invars[0]) else None
            if array in changes and reads(eqn, array):
                read[eqn.outvars[0]] = eqn, [others[array], *operands[1:]]
            return run_in_place(eqn, operands)
        (is_done, own), value = operands, None if is_literal(eqn.invars[1]) else eqn.invars[1]
        if value in read:
            (others[value],) = run_in_place(*read[value])
            changes.add(value)
        other = others.setdefault(eqn.outvars[0], others.get(value, own))
        if value in fixed:
            fixed.add(eqn.outvars[0])
            return [other]
        if value not in changes:
            return instead_p.bind(is_done, other, own, axes=eqn.params["axes"])
        changes.add(eqn.outvars[0])
        return [select(is_done, lax.stop_gradient(other), own, eqn.params["axes"])]

    return run_each(closed, inputs, run)


# The step


def guarded(loop: Loop, consts: list[Any], carry: list[Any]) -> list[Any]:
    """The carry after the step of a while loop, which leaves examples that are done unchanged, and
    the entries of a step that is logged."""
    is_done = done(loop.holds(consts, carry))
    leaves, jaxpr = _marked_step(loop, is_done)
    selected = [not leaf for leaf in leaves]
    flat = call_jaxpr(jaxpr)(is_done, *consts[loop.num_condition_consts :], *carry)
    new, entries = loop.results(flat)
    pairs = zip(pick(carry, selected), pick(new, selected), strict=True)
    return [*substitute(new, selected, [lax.select(is_done, *pair) for pair in pairs]), *entries]


def _marked_step(loop: Loop, is_done: jax.Array) -> tuple[Mask, ClosedJaxpr]:
    """The leaves of the carry of which the step only reads and writes entries; and the step, from
    whether the example is done and its own inputs, which leaves these leaves unchanged if it is.
    Equations that compute what other examples see take the inputs without marks.

    A step that is logged may also read the whole of a leaf to which it writes. Then its writes run
    twice: in the marked leaf, which the step reads, and in the leaf itself."""
    of_done = jax.typeof(is_done)

    def find() -> tuple[Mask, ClosedJaxpr]:
        closed = with_slices(loop.jaxpr)
        inputs, (new, entries) = closed.jaxpr.invars, loop.results(closed.jaxpr.outvars)
        first = loop.num_consts - loop.num_condition_consts
        carry = inputs[first : first + loop.num_carry]
        uses, logged = Uses(closed, entries), set(variables(entries))
        chains = [uses.chain(*each) for each in zip(carry, new, strict=True)]
        written = {eqn.outvars[0] for chain in chains for eqn in chain}
        arrays = {v for v, chain in zip(carry, chains, strict=True) if chain}
        paths = [path(closed.jaxpr, *each) for each in zip(carry, new, strict=True)]
        paths = [chain or (p if entries else []) for chain, p in zip(chains, paths, strict=True)]
        leaves = tuple(bool(p) and all(map(may_be_left_out, p)) for p in paths)
        again = {id(eqn) for p in paths for eqn in p if written.isdisjoint(eqn.outvars)}
        again |= {id(eqn) for eqn in closed.eqns if is_read(eqn) and eqn.outvars[0] in logged}
        mixing = list(filter(mixes_examples, closed.eqns))
        seen = set(map(id, between(closed.jaxpr, [], [], mixing)))

        def step(is_done: jax.Array, *values: Any) -> list[Any]:
            pairs = zip(inputs, values, strict=True)
            marked: dict[Any, Any] = {v: mark(is_done, x) for v, x in pairs if v not in arrays}
            pairs = zip(carry, values[first:], strict=True)
            own: dict[Any, Any] = {v: x for (v, x), p in zip(pairs, paths, strict=True) if p}

            def run(eqn: Any, operands: list[Any]) -> Sequence[Any]:
                is_seen = id(eqn) in seen
                operands = operands if is_seen else _instead(marked, eqn.invars, operands)
                if id(eqn) in again:
                    alone = _instead(own, eqn.invars, operands)
                    is_write = writes(eqn, eqn.invars[0]) and may_be_left_out(eqn)
                    own[eqn.outvars[0]] = (
                        write_unless(is_done, eqn, alone)
                        if is_write
                        else run_in_place(eqn, alone)[0]
                    )
                if is_seen:
                    return run_in_place(eqn, operands)
                if written.intersection(eqn.outvars):
                    return [write_unless(is_done, eqn, operands)]
                results = run_in_place(eqn, operands)
                is_marked = any(reads(eqn, array) for array in arrays)
                return [mark(is_done, *results)] if is_marked else results

            return _instead(own, closed.jaxpr.outvars, run_each(closed, values, run))

        return leaves, jax.make_jaxpr(step)(of_done, *closed.in_avals)

    return once(loop, ("marked step", of_done, names_axes()), find)


def _instead(values: Mapping[Any, Any], atoms: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The values of these atoms, or the others where there are none."""
    pairs = zip(atoms, others, strict=True)
    return [x if is_literal(v) else values.get(v, x) for v, x in pairs]


def linearizable(loop: Loop, safe: Operands, active: Mask, *, is_mapped: bool) -> Step:
    """The loop's step for a reverse sweep, with safe consts and carry, where these consts are
    active. If it `is_mapped`, it leaves examples that are done unchanged."""
    first = loop.num_condition_consts
    is_marked = any(eqn.primitive is mark_p for eqn in loop.jaxpr.eqns)
    if loop.condition is None or not (is_marked or is_mapped):
        return loop.step

    def step(consts: list[Any], carry: list[Any], _: list[Any]) -> tuple[list[Any], list[Any]]:
        closed, at = loop.jaxpr, first
        if is_mapped:
            closed, at = jax.make_jaxpr(lambda *xs: guarded(loop, *xs))(consts, carry), 0
        instead = [*safe.consts[at:], *safe.carry]
        return loop.results(run_marked(closed, [*consts[at:], *carry], instead, active[at:]))

    return step


def run_examples(loop: Loop, operands: Operands) -> list[Any]:
    """The final carry of a while loop without bound, in the form that `jax.vmap` batches."""
    consts, init, _ = operands
    step = lambda carry: guarded(loop, consts, carry)  # noqa: E731
    return lax.while_loop(lambda carry: any_example(loop.holds(consts, carry)), step, init)


# Operands for examples that never ran


class _Never(NamedTuple):
    """Which examples never ran, along these axes of a value."""

    flags: Any
    axes: tuple[int, ...]


def _never(loop: Loop, operands: Operands) -> dict[int, _Never]:
    """For the inputs of a marked step of which each example has its own."""
    if loop.condition is None or loop.condition.effects:
        return {}  # do not evaluate a condition that prints more often than lax
    jaxpr, first = loop.jaxpr.jaxpr, loop.num_consts - loop.num_condition_consts
    found = dict[int, tuple[Any, tuple[int, ...]]]()
    numbers: dict[Any, int] = {v: i for i, v in enumerate(jaxpr.invars)}
    read = dict[Any, int]()
    for eqn in jaxpr.eqns:
        operand: Any = eqn.invars[0] if eqn.invars and not is_literal(eqn.invars[0]) else None
        if eqn.primitive is not mark_p:
            if numbers.get(operand, -1) >= first and reads(eqn, operand):
                read[eqn.outvars[0]] = numbers[operand]
            continue
        value: Any = None if is_literal(eqn.invars[1]) else eqn.invars[1]
        axes, number = eqn.params["axes"], numbers.get(value)
        if number is not None:  # the marks of further axes follow, and are finer
            numbers[eqn.outvars[0]] = number
        elif (number := read.get(value)) is not None:
            axes = tuple(range(len(axes)))  # the examples are the first axes of every carry
        if number is not None and axes:
            found[number] = operand, axes
    if not found:
        return {}
    given = [*operands.consts[loop.num_condition_consts :], *operands.carry]
    values = part_of(loop.jaxpr, jaxpr.invars, [flag for flag, _ in found.values()])(given)
    pairs = zip(found.items(), values, strict=True)
    return {i: _Never(value, axes) for (i, (_, axes)), value in pairs}


def _share(loop: Loop, never: Mapping[int, _Never], active: Sequence[bool]) -> bool:
    """Whether examples share a const that is active, and that is more than a number."""
    copied = _copied(loop.jaxpr.jaxpr)
    inputs, active = loop.jaxpr.jaxpr.invars, active[loop.num_condition_consts :]
    return any(a and i not in never and inputs[i] not in copied for i, a in enumerate(active))


def _copied(jaxpr: Any) -> set[Any]:
    """The inputs that are only copied for each example, with a mark on each copy."""
    others, copies = set[Any](), dict[Any, Any]()
    for eqn in jaxpr.eqns:
        operands = [v for v in eqn.invars if not is_literal(v)]
        if eqn.primitive.name == "broadcast_in_dim" and len(operands) == 1:
            copies[eqn.outvars[0]] = operands[0]
        elif eqn.primitive is mark_p:
            others.update(operands[:1])
        else:
            others.update(operands)
    others.update(v for v in jaxpr.outvars if not is_literal(v))
    return {v for copy, v in copies.items() if copy not in others} - others


def safe_operands(
    loop: Loop, operands: Operands, active: Sequence[bool], *, borrows: bool = False
) -> Operands:
    """The consts and the carry for examples that are done, where these consts are active. With
    `borrows`, JAX differentiates what `jax.vmap` makes of the program."""
    if loop.condition is None or loop.condition.effects:
        return operands
    consts, carry, xs = operands
    first, never = loop.num_condition_consts, _never(loop, operands)
    values = [*consts[first:], *carry]
    if never and _share(loop, never, active):
        values = [_lent(never[i], x) if i in never else x for i, x in enumerate(values)]
    if borrows:
        is_done = done(loop.holds(consts, carry))
        may = [varying_axes(jax.typeof(is_done)) <= varying_axes(jax.typeof(x)) for x in values]
        own = pick(values, may)
        lent = _lend(is_done, list(map(lax.stop_gradient, own)))
        lent = [lax.select(is_done, x, v) for x, v in zip(lent, own, strict=True)]
        values = substitute(values, may, lent)
    count = len(consts) - first
    return Operands([*consts[:first], *values[:count]], values[count:], xs)


def _lent(never: _Never, value: Any) -> Any:
    """For each example, the value of one that ran. It is found by a sum, which reads a sharded
    batch where it lies."""
    moved, rank = jnp.moveaxis(value, never.axes, range(len(never.axes))), never.flags.ndim
    numbers = jnp.arange(never.flags.size).reshape(never.flags.shape)
    is_donor = numbers == jnp.argmax(~never.flags)
    is_donor = is_donor.reshape(*is_donor.shape, *(1 for _ in moved.shape[rank:]))
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        row = moved[jnp.unravel_index(jnp.argmax(~never.flags), never.flags.shape)]
    elif value.dtype == bool:
        row = jnp.any(is_donor & moved, range(rank))
    else:
        row = jnp.sum(jnp.where(is_donor, moved, 0), range(rank), dtype=value.dtype)
    row = jnp.broadcast_to(row, moved.shape)
    return select(never.flags, jnp.moveaxis(row, range(rank), never.axes), value, never.axes)


@custom_vmap
def _lend(never: jax.Array, values: list[jax.Array]) -> list[jax.Array]:
    """The values, another example's for those that never ran."""
    del never
    return values


@_lend.def_vmap
def _(axis_size: int, batched: Any, never: jax.Array, values: list[jax.Array]) -> Any:
    never_batched, are_batched = batched
    if not never_batched or axis_size == 0:  # then the axis is one more axis of the values
        return _lend(jnp.all(never, 0) if never_batched else never, values), are_batched
    flags = _Never(never, tuple(range(never.ndim)))
    pairs = zip(values, are_batched, strict=True)
    return _lend(jnp.all(never, 0), [_lent(flags, v) if b else v for v, b in pairs]), are_batched
