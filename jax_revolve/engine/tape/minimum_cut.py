"""The minimum cut of a graph of which some edges have limited capacities."""

from collections.abc import Mapping, Sequence

import numpy as np

LARGEST = 2**30
"""The most that capacities add up to: they are 32-bit integers."""

SOURCE, SINK = 0, 1
"""Nodes of the graph."""


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
