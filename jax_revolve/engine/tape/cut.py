"""The fewest bytes from which the residuals of a step can be recomputed: a minimum cut.

JAX keeps more than it needs: both the result of a `tanh` and a function of it, and three versions
of a gate in a recurrent network. Cheap operations recompute most residuals from fewer values. In
`y = sin(w @ x)`, u = w @ x is kept, and the reverse sweep recomputes cos(u):

    x --dot--> u --sin--> y
               | --cos--> residual

Which values to keep is a minimum cut of the graph of the step's equations:

- The sources are the carry, and the results of operations that never run again: products,
  convolutions, loops, sorts, linear algebra, random bits, scatters, unknown primitives, and values
  that the user marked (`jax.ad_checkpoint.checkpoint_name`, policies of `jax.checkpoint`).
- The sinks are the residuals.
- A kept value costs its bytes. Slices of the xs, and values that are the same for every step, are
  free.

Among several minimum cuts, we take the one closest to the residuals, which recomputes the least.

Source: L. R. Ford and D. R. Fulkerson, "Maximal flow through a network", Canadian Journal of
Mathematics 8, 1956. The partitioner of PyTorch's AOTAutograd is a minimum cut, too.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_revolve._compat.jaxprs import variables
from jax_revolve._compat.values import bytes_of
from jax_revolve.engine.tape.layout import given_as
from jax_revolve.jaxprs.parts import between
from jax_revolve.profiles.profile import Profile
from jax_revolve.step.linearized import Linearized, Variable
from jax_revolve.step.operations import having
from jax_revolve.step.reports import silenced
from jax_revolve.step.work import work_of_equations

CHEAPEST = having("elementwise", "moving")
CHEAP = CHEAPEST | having("transcendental", "slow")
"""Operations that may run again."""

LARGEST = 2**30
"""The largest sum of the capacities, which SciPy holds in 32-bit integers."""

SOURCE, SINK = 0, 1
"""Nodes of the graph."""


class Cut(NamedTuple):
    """The `kept` values of a step; values that are the `same` for every step; the equations that
    recompute the residuals from these and the xs; and the work in nanoseconds that this adds to a
    step, compared with keeping all residuals."""

    kept: list[Variable]
    same: list[Variable]
    recomputed: list[Any]
    work: float
    given: dict[Variable, Variable]
    """See `layout.given_as`."""

    @property
    def bytes(self) -> int:
        """Of each step of a block."""
        return bytes_of(v.aval for v in self.kept if v not in self.given)

    @property
    def is_elementwise(self) -> bool:
        """Whether only elementwise arithmetic is recomputed."""
        return all(eqn.primitive.name in having("elementwise") for eqn in self.recomputed)


def best_cut(step: Linearized, profile: Profile) -> Cut:
    """The fastest cut, where each kept byte costs `saved_byte` nanoseconds."""
    choices = [uncut(step)]
    for cheap in (CHEAPEST, CHEAP):
        choices.append(kept := fewest_bytes(step, cheap))
        # What the step returns for a leaf that is kept is kept anyway, for the next step.
        after = zip(step.carry, step.results, strict=False)
        if free := set(variables([v for leaf, v in after if leaf in kept])).difference(kept):
            choices.append(fewest_bytes(step, cheap, free))
    cuts = [cut_at(step, kept, profile) for kept in choices]
    return min(cuts, key=lambda cut: cut.work + profile.saved_byte * cut.bytes)


def uncut(step: Linearized) -> list[Variable]:
    """What JAX keeps of a step."""
    varying = step.varying.difference(step.x)
    return step.in_order(varying.intersection(variables(step.residuals)))


def cut_at(step: Linearized, kept: list[Variable], profile: Profile) -> Cut:
    # A recomputed step reports no progress, and must keep what the first one kept.
    jaxpr, varying = silenced(step.closed).jaxpr, step.varying
    recomputed = between(jaxpr, [*step.shared, *kept, *step.x], step.residuals)
    recomputed = [eqn for eqn in recomputed if not varying.isdisjoint(eqn.outvars)]
    used = variables([*step.residuals, *(v for eqn in recomputed for v in eqn.invars)])
    same = {v for v in used if v not in varying}.difference([*jaxpr.constvars, *step.shared])
    more = _work_to(jaxpr, [*step.results, *kept], profile)
    more += work_of_equations(recomputed, profile)
    more -= _work_to(jaxpr, [*step.results, *step.residuals], profile)
    given = given_as(kept, step.carry, step.results)
    return Cut(kept, step.in_order(same), recomputed, more, given)


def more_in_a_block(step: Linearized, cut: Cut, profile: Profile) -> float:
    """How many nanoseconds longer a step takes in a block than one that is taped alone, which has
    no next step: so only its residuals are computed, and none of them twice."""
    jaxpr, again = step.closed.jaxpr, work_of_equations(cut.recomputed, profile)
    in_block = _work_to(jaxpr, [*step.results, *cut.kept], profile) + again
    return in_block - _work_to(jaxpr, step.residuals, profile)


def _work_to(jaxpr: Any, outputs: Sequence[Any], profile: Profile) -> float:
    return work_of_equations(between(jaxpr, jaxpr.invars, outputs), profile)


def fewest_bytes(
    step: Linearized, cheap: Collection[str] = CHEAP, free: Collection[Variable] = ()
) -> list[Variable]:
    """The fewest bytes of variables from which the operations `cheap` recompute the residuals,
    given the xs and the values that are the same for every step, if some variables are `free`."""
    varying = step.varying.difference(step.x)
    residuals = varying.intersection(variables(step.residuals))
    needed = _needed(step.closed.jaxpr, residuals, varying, cheap)
    nodes = {v: 2 * i + 2 for i, v in enumerate(needed)}
    unlimited = [(nodes[v] + 1, SINK) for v in residuals]
    for v, operands in needed.items():
        sources = [SOURCE] if operands is None else [nodes[u] + 1 for u in operands]
        unlimited += [(source, nodes[v]) for source in sources]
    limits = {(n, n + 1): bytes_of([] if v in free else [v.aval]) for v, n in nodes.items()}
    beyond = minimum_cut(limits, unlimited)
    return step.in_order({v for v, n in nodes.items() if n not in beyond and n + 1 in beyond})


def _needed(
    jaxpr: Any, residuals: Collection[Variable], varying: set[Variable], cheap: Collection[str]
) -> dict[Variable, set[Variable] | None]:
    """The variables that the residuals are computed from, each with the varying operands of its
    equation; `None` for a variable that must be kept."""
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    found: dict[Variable, set[Variable] | None] = {}
    rest = list(residuals)
    while rest:
        v = rest.pop()
        if v in found:
            continue
        eqn = makers.get(v)
        if eqn is None or eqn.effects or eqn.primitive.name not in cheap:
            found[v] = None
        else:
            operands = found[v] = varying.intersection(variables(eqn.invars))
            rest += operands
    return found


def minimum_cut(
    limits: Mapping[tuple[int, int], int], unlimited: Sequence[tuple[int, int]]
) -> set[int]:
    """The nodes on the sink's side of the minimum cut that is closest to it."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    scale = max(1, -(-sum(limits.values()) // LARGEST))
    capacities = [-(-limit // scale) for limit in limits.values()]
    unlimited = list(dict.fromkeys(unlimited))  # SciPy adds up the capacities of equal edges
    edges = np.array([*limits, *unlimited], np.int32).reshape(-1, 2)
    weights = np.array([*capacities, *[sum(capacities) + 1] * len(unlimited)], np.int32)
    size = max(edges.max(initial=SINK) + 1, 2)
    graph = csr_matrix((weights, (edges[:, 0], edges[:, 1])), shape=(size, size))
    left = graph - maximum_flow(graph, SOURCE, SINK).flow
    left.eliminate_zeros()
    return {*breadth_first_order(left.T.tocsr(), SINK, return_predecessors=False).tolist()}
