"""Large arrays in the carry of which a step writes a few entries, such as a trajectory.

XLA writes them in place. But an example that is done keeps its carry, and a select between the
array before and after the step would copy it in each step. So a step that only writes entries of an
array writes none for such an example.

It may read entries, too. An example that is done reads them from an array for which its step has
run before, see `examples`.
"""

from typing import Any, NamedTuple

import jax
from jax import lax

from jax_revolve._compat.equations import run_each, run_in_place
from jax_revolve._compat.jaxprs import ClosedJaxpr, has_collective
from jax_revolve._compat.updates import Uses, reads, with_slices, write_unless
from jax_revolve.step.activity import Mask
from jax_revolve.step.loop import Loop, pick
from jax_revolve.step.once import once


class InPlace(NamedTuple):
    """Which leaves of the carry a step can leave as they are, and the step that does so.

    `jaxpr` takes whether the example is done, safe values of these leaves, and the inputs of the
    step. It is `None` if there are no such leaves.
    """

    leaves: Mask
    jaxpr: ClosedJaxpr | None


def find_in_place(loop: Loop, is_done: jax.Array) -> InPlace:
    """The leaves of which the loop's step reads and writes entries alone."""
    of_done = jax.typeof(is_done)

    def find() -> InPlace:
        closed = with_slices(loop.jaxpr)
        first = loop.num_consts - loop.num_condition_consts
        carry = closed.jaxpr.invars[first : first + loop.num_carry]
        new, _ = loop.results(closed.jaxpr.outvars)
        uses = Uses(closed)
        writers = [uses.chain(*each) for each in zip(carry, new, strict=True)]
        leaves = tuple(map(bool, writers))
        if not any(leaves) or has_collective(loop.jaxpr):  # others would see what it reads
            return InPlace((False,) * len(leaves), None)
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
        return InPlace(leaves, jax.make_jaxpr(step)(of_done, safe, *closed.in_avals))

    return once(loop, ("in place", of_done), find)
