"""While loops under `vmap`, whose examples take different numbers of steps.

A loop whose condition depends on the example runs until the last example is done. We reduce its
predicate over the batch to a scalar: a batched predicate would make JAX run both branches of every
`cond`, and select whole slot buffers. Instead, each example that is done keeps its carry by a
select:

    x = where(done, safe, carry)            # a state for which the step is known to work
    carry = where(done, carry, step(x))

The step is still computed for examples that are done. It may have no derivative at the state where
they stopped, and zero times infinity is not zero. So it gets a safe state: the example's initial
carry or, if the example was done from the start, the carry and consts of another example. Values
that other examples may see, such as an operand of `lax.psum`, are still computed from the example's
own state, as in lax: see `mixing`.

XLA writes a few entries of a large array, such as a trajectory, in place, but a select would copy
the array in each step. So if a step only reads and writes entries of an array, it writes none for
examples that are done, and reads from the safe array.

Only booleans and values without tangents pass through the `custom_vmap` functions, so JAX can
differentiate around them. Without `vmap`, these values are constants and cost nothing.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from jax_revolve._compat.interpreters import names_axes
from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, with_equations
from jax_revolve._compat.values import pick, substitute, varying_axes
from jax_revolve.jaxprs.evaluate import run_each, run_in_place
from jax_revolve.jaxprs.parts import between
from jax_revolve.step.loop import Loop, Mask, Operands, Step, once
from jax_revolve.step.mixing import mixes_examples
from jax_revolve.step.updates import Uses, reads, with_slices, write_unless


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


@custom_vmap
def _donate(going: jax.Array, values: list[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
    """For each value, whether it needs a replacement because its example was done from the start,
    and the replacement."""
    return [(jnp.zeros_like(going), value) for value in values]


@_donate.def_vmap
def _(axis_size: int, batched: Any, going: jax.Array, values: list[jax.Array]) -> Any:
    going_batched, values_batched = batched
    if not going_batched:  # then the axis is one more axis of the values
        return _donate(going, values), [(False, b) for b in values_batched]
    if axis_size == 0:
        return _donate(going, values), [(True, b) for b in values_batched]
    donor = jnp.argmax(going)
    rows = [v[donor] if b else v for v, b in zip(values, values_batched, strict=True)]
    outer = _donate(jnp.any(going), rows)
    results = []
    for (needed, value), row, is_batched in zip(outer, rows, values_batched, strict=True):
        donated = lax.select(needed, value, row)
        results.append((~going, donated) if is_batched else (needed, value))
    return results, [(b, False) for b in values_batched]


def safe_operands(loop: Loop, operands: Operands) -> Operands:
    """Consts and carry for which the step works, for examples that are done."""
    if loop.condition is None or loop.condition.effects:
        return operands  # do not evaluate a condition that prints more often than lax
    consts, carry, xs = operands
    first = loop.num_condition_consts
    going = loop.holds(consts, carry)
    # A const that is the same on all devices, where examples differ, cannot be replaced.
    axes = varying_axes(jax.typeof(going))
    replaced = [i >= first and axes <= varying_axes(jax.typeof(c)) for i, c in enumerate(consts)]
    values = [*pick(consts, replaced), *carry]
    donated = _donate(going, [lax.stop_gradient(v) for v in values])
    safe = [lax.select(n, r, v) for (n, r), v in zip(donated, values, strict=True)]
    num_consts = sum(replaced)
    # Results from a safe carry are dropped, so it needs no derivative.
    safe_carry = [lax.stop_gradient(x) for x in safe[num_consts:]]
    return Operands(substitute(consts, replaced, safe[:num_consts]), safe_carry, xs)


def guarded(loop: Loop, consts: list[Any], safe: list[Any], carry: list[Any]) -> Step:
    """The loop's step from this carry, which leaves examples that are done unchanged. It computes
    their step from safe consts, which it is given, and the carry `safe`, but the condition, and
    values that other examples may see, from `consts` and their own carry."""
    if loop.condition is None:
        return loop.step
    is_done = done(loop.holds(consts, carry))
    leaves, jaxpr = find_in_place(loop, is_done)
    selected = [not leaf for leaf in leaves]

    first = loop.num_condition_consts

    def run(safe_consts: list[Any], own: list[Any], x: list[Any]) -> list[Any]:
        inputs = [*safe_consts[first:], *select(safe, own), *x]
        if jaxpr is not None:
            return call_jaxpr(jaxpr)(is_done, *pick(safe, leaves), *inputs)
        pairs = zip(consts[first:], safe_consts[first:], strict=True)
        return _run_mixing(loop, [*(_at(*pair) for pair in pairs), *own, *x], inputs)

    def select(true: list[Any], false: list[Any]) -> list[Any]:
        values = zip(pick(true, selected), pick(false, selected), strict=True)
        return substitute(false, selected, [lax.select(is_done, t, f) for t, f in values])

    def step(consts: list[Any], carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        new, ys = loop.results(run(consts, carry, x))
        return select(carry, new), ys

    return step


@jax.custom_jvp
def _at(point: Any, value: Any) -> Any:
    """The point, with the derivative of the value."""
    del value
    return point


@_at.defjvp
def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return primals[0], tangents[1]


def _run_mixing(loop: Loop, own: list[Any], safe: list[Any]) -> list[Any]:
    """A step's results from safe inputs, except that equations that may mix examples see operands
    computed from each example's own inputs."""
    closed, mixing = _mixing(loop)
    if not mixing:
        return call_jaxpr(closed)(*safe)
    seen: dict[int, Sequence[Any]] = {}

    def run_own(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        results = run_in_place(eqn, operands)
        if any(eqn is each for each in mixing):
            seen[id(eqn)] = results
        return results

    def run_safe(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        return seen[id(eqn)] if id(eqn) in seen else run_in_place(eqn, operands)

    run_each(
        with_equations(closed, between(closed.jaxpr, [], [], mixing), outvars=[]), own, run_own
    )
    return run_each(closed, safe, run_safe)


def _mixing(loop: Loop) -> tuple[ClosedJaxpr, list[Any]]:
    """The loop's step, and its equations that may mix examples."""

    def find() -> tuple[ClosedJaxpr, list[Any]]:
        closed = with_slices(loop.jaxpr)
        return closed, list(filter(mixes_examples, closed.eqns))

    return once(loop.bare, ("mixing", names_axes()), find)


def run_examples(loop: Loop, operands: Operands) -> list[Any]:
    """The final carry of a while loop without bound, in the form that `jax.vmap` batches."""
    consts, init, _ = operands
    safe = safe_operands(loop, operands)

    def step(carry: list[Any]) -> list[Any]:
        return guarded(loop, consts, safe.carry, carry)(safe.consts, carry, [])[0]

    return lax.while_loop(lambda carry: any_example(loop.holds(consts, carry)), step, init)


def find_in_place(loop: Loop, is_done: jax.Array) -> tuple[Mask, ClosedJaxpr | None]:
    """The leaves of the carry of which the step only reads and writes entries, and a step that can
    leave them unchanged. It takes whether the example is done, safe values of these leaves, and the
    step's inputs. `None` if there are no such leaves."""
    of_done = jax.typeof(is_done)

    def find() -> tuple[Mask, ClosedJaxpr | None]:
        closed, mixing = _mixing(loop)
        first = loop.num_consts - loop.num_condition_consts
        carry = closed.jaxpr.invars[first : first + loop.num_carry]
        new, _ = loop.results(closed.jaxpr.outvars)
        uses = Uses(closed)
        writers = [uses.chain(*each) for each in zip(carry, new, strict=True)]
        leaves = tuple(map(bool, writers))
        if not any(leaves) or mixing:  # others may see what it reads
            return (False,) * len(leaves), None
        written = {eqn.outvars[0] for chain in writers for eqn in chain}
        arrays = pick(carry, leaves)

        def step(is_done: jax.Array, safe: list[Any], *inputs: Any) -> list[Any]:
            def run(eqn: Any, operands: list[Any]) -> list[Any]:
                if written.intersection(eqn.outvars):
                    return [write_unless(is_done, eqn, operands)]
                results = run_in_place(eqn, operands)
                for array, other in zip(arrays, safe, strict=True):
                    if reads(eqn, array):
                        (instead,) = run_in_place(eqn, [other, *operands[1:]])
                        return [lax.select(is_done, instead, *results)]
                return results

            return run_each(closed, inputs, run)

        safe = [v.aval for v in arrays]
        return leaves, jax.make_jaxpr(step)(of_done, safe, *closed.in_avals)

    return once(loop, ("in place", of_done), find)
