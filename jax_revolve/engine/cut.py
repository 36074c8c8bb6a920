"""The fewest bytes from which the residuals of a step can be computed again: a minimum cut.

JAX keeps what its linearization of a step asks for: of a `tanh` its result and a function of that,
of a gate of a recurrent network three versions. Most of these values follow from fewer ones by
cheap operations. Which values to keep is a minimum cut of the graph of the step's equations:

- The sources are the carry, and results of operations that never run again: products, convolutions,
  loops, sorts, linear algebra, random bits, scatters, whatever is not known here, and what a user
  marked to be kept (`jax.ad_checkpoint.checkpoint_name`, and policies of `jax.checkpoint`).
- The sinks are the residuals.
- A value that is kept costs its bytes. Slices of the xs, and values that are the same for every
  step, can be had without being kept.

Of several such cuts it is the one closest to the residuals, from which the least is computed again.

Source: L. R. Ford and D. R. Fulkerson, "Maximal flow through a network", Canadian J. Math. 8, 1956.
Tapes as minimum cuts: "Min-cut optimal recomputation" of PyTorch's AOTAutograd, 2022.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from jax_revolve._compat import between, bytes_of, variables, varying_variables
from jax_revolve.step.work import FREE, TRANSCENDENTAL

Variable = Any
"""A variable of a jaxpr."""

ARITHMETIC = FREE | {
    *("abs", "add", "add_any", "and", "argmax", "argmin", "ceil", "clamp", "complex", "concatenate"),
    *("conj", "convert_element_type", "copysign", "div", "dynamic_slice", "dynamic_update_slice"),
    *("eq", "eq_to", "expand_dims", "floor", "gather", "ge", "gt", "imag", "integer_pow", "iota"),
    *("is_finite", "le", "le_to", "lt", "lt_to", "max", "min", "mul", "ne", "neg", "nextafter"),
    *("not", "one_minus_square", "or", "pad", "population_count", "real", "reduce_and"),
    *("reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "rem", "rev", "round"),
    *("select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "slice"),
    *("split", "square", "sub", "transpose", "xor"),
}
"""Operations that may run again, in addition to `work.TRANSCENDENTAL`."""

CHEAP = ARITHMETIC | TRANSCENDENTAL

LARGEST = 2**30
"""The most that capacities add up to: they are 32-bit integers."""

SOURCE, SINK = 0, 1
"""Nodes of the graph."""


def kept_values(
    jaxpr: Any, residuals: Sequence[Any], carry: Sequence[Variable], xs: Sequence[Variable]
) -> list[Variable]:
    """What is kept of a step."""
    return fewest_bytes(jaxpr, residuals, carry, xs)


def same_values(jaxpr: Any, inputs: Sequence[Variable], residuals: Sequence[Any]) -> list[Variable]:
    """The values that residuals are computed from, with the `inputs`, and that are the same for
    every step."""
    varying = varying_variables(jaxpr, jaxpr.invars)
    eqns = [e for e in between(jaxpr, inputs, residuals) if not varying.isdisjoint(e.outvars)]
    used = variables([*residuals, *(v for e in eqns for v in e.invars)])
    outside = varying.union(jaxpr.constvars)
    return [v for v in dict.fromkeys(used) if v not in outside]


def fewest_bytes(
    jaxpr: Any,
    residuals: Iterable[Variable],
    carry: Sequence[Variable],
    xs: Sequence[Variable],
    *,
    kept_anyway: Collection[Variable] = (),
    again: Collection[str] = CHEAP,
) -> list[Variable]:
    """The variables of least total bytes from which, and from the xs and what is the same for every
    step, the residuals can be computed by the operations `again` alone. Those that are
    `kept_anyway` cost nothing."""
    varying = varying_variables(jaxpr, [*carry, *xs]).difference(xs)
    needed = _needed(jaxpr, varying.intersection(variables(list(residuals))), varying, again)
    nodes = {v: 2 * number + 2 for number, v in enumerate(needed)}
    costs = [0 if v in kept_anyway else bytes_of([v.aval]) for v in nodes]
    unlimited = [(nodes[v] + 1, SINK) for v in nodes if v in residuals]
    for v, operands in needed.items():
        sources = [SOURCE] if operands is None else [nodes[u] + 1 for u in operands]
        unlimited += [(source, nodes[v]) for source in sources]
    beyond = _minimum_cut([(node, node + 1) for node in nodes.values()], costs, unlimited)
    kept = {v for v, node in nodes.items() if node not in beyond and node + 1 in beyond}
    # Forward sweep and reverse sweep find the same order.
    return [v for v in (*carry, *(v for e in jaxpr.eqns for v in e.outvars)) if v in kept]


def _needed(
    jaxpr: Any, residuals: Iterable[Variable], varying: set[Variable], again: Collection[str]
) -> dict[Variable, set[Variable] | None]:
    """What residuals are computed from, each with the operands of its equation that must be kept or
    computed; `None` if it can only be kept."""
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    found: dict[Variable, set[Variable] | None] = {}
    rest = list(residuals)
    while rest:
        v = rest.pop()
        if v in found:
            continue
        eqn = makers.get(v)
        if eqn is None or eqn.effects or eqn.primitive.name not in again:
            found[v] = None
        else:
            found[v] = varying.intersection(variables(eqn.invars))
            rest += found[v]
    return found


def _minimum_cut(
    limited: Sequence[tuple[int, int]],
    capacities: Sequence[int],
    unlimited: Sequence[tuple[int, int]],
) -> set[int]:
    """The nodes on the sink's side of the minimum cut that is closest to it."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    scale = max(1, -(-sum(capacities) // LARGEST))
    limits = [-(-capacity // scale) for capacity in capacities]
    edges = np.array([*limited, *unlimited], np.int32).reshape(-1, 2).T
    weights = np.array([*limits, *[sum(limits) + 1] * len(unlimited)], np.int32)
    size = max(edges.max(initial=SINK) + 1, 2)
    graph = csr_matrix((weights, tuple(edges)), shape=(size, size))
    left = graph - maximum_flow(graph, SOURCE, SINK).flow
    left.eliminate_zeros()
    return {*breadth_first_order(left.T.tocsr(), SINK, return_predecessors=False).tolist()}
