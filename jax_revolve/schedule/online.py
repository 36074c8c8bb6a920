"""Where a loop of unknown length stores checkpoints on its way, in exact integers.

The forward sweep holds at most `checkpoints` positions. Position 0 is one of them and is always
kept. Wherever the loop stops, the reverse sweep knows its length and is optimal: the steps between
two neighboring checkpoints, a *gap*, are a loop of their own, reversed with all slots but those of
the earlier checkpoints. The optimum for n steps whose value has to be complete first is
n + t(n + 1, s) evaluations, as for one step more, the last of which is the end of the loop. It is
met if gap i is between beta(s - i, q - 1) and beta(s - i, q) steps long, for one q and every i.

That q is the *level* of the loop. The rule here keeps every gap but the last within the upper limit
of the level. It is exact up to n = C(s + 2, 2). For all longer loops that were tried, up to
n = 300000, it is within 10.4 % of the optimum for s = 2, 6 % for s >= 3, 1 % for s >= 12 and 0.2 %
for s >= 20, and on average over n much nearer.

1. The *landmarks* of a level are the checkpoints that the offline schedule places in its longest
   loop, and the end of that loop. The loop always stores there, and keeps them while in the level.
2. Between landmarks it stores at every 2 q-th step. The last slot's limit would be q + 1 steps, but
   a new gap is short at first: longer ones cost little, and halve the number of stores.
3. To make place, it drops the newest checkpoint that is not a landmark of the level and leaves a
   gap within the limit. There is one: before the oldest that is not a landmark there are nothing
   but landmarks, and after it the next landmark at the latest; that far the limit reaches.

Sources: P. Stumm and A. Walther, "New algorithms for optimal online checkpointing", SIAM J. Sci.
Comput. 32(2), 2010, for the range in which an online schedule can be exact; Q. Wang, P. Moin and
G. Iaccarino, "Minimal repetition dynamic checkpointing algorithm for unsteady adjoint calculation",
SIAM J. Sci. Comput. 31(4), 2009, for replacing checkpoints level by level. The rule is neither's.
"""

from collections.abc import Sequence
from itertools import pairwise

from jax_revolve.schedule.binomial import advances, beta, repetition

NEVER = 2**31 - 1
"""A position that no loop gets to: steps are counted in 32 bits."""


def level(steps: int, checkpoints: int) -> int:
    """The level q of a loop, at least 1: beta(s, q) <= n < beta(s, q + 1).

    Each of its steps is advanced once for the value and, at best, at most q times in reverse.
    """
    return max(repetition(steps + 1, checkpoints) - 1, 1)


def landmarks(level: int, checkpoints: int) -> list[int]:
    """Where Revolve places checkpoints in the longest loop of a level, 0 excluded; and its end.

    The gaps between them are beta(s, q), beta(s - 1, q), ..., beta(1, q).
    """
    end = beta(checkpoints, level + 1)
    return [end - beta(free, level + 1) for free in reversed(range(checkpoints))]


def limits(level: int, checkpoints: int) -> list[int]:
    """The longest gaps that dropping the checkpoints 1, ..., s - 1 may leave.

    The gap that dropping checkpoint j leaves is reversed with s - j + 1 slots.
    """
    return [beta(slots, level) for slots in range(checkpoints, 1, -1)]


def next_store(positions: Sequence[int], checkpoints: int) -> int:
    """Where the next checkpoint is stored, if the loop goes on from there; `NEVER` for one slot."""
    newest = positions[-1]
    if checkpoints == 1:
        return NEVER
    if len(positions) < checkpoints:
        return newest + 1
    # At level 1 the next checkpoint is needed by loops of newest + 3 steps and more.
    q = level(newest + 3, checkpoints)
    return min(newest + 2 * q, *(p for p in landmarks(q, checkpoints) if p > newest))


def dropped(positions: Sequence[int], checkpoints: int, position: int) -> int:
    """Which of `positions`, as an index, makes place for a checkpoint at `position`."""
    q = level(position + 1, checkpoints)
    kept, limit = landmarks(q, checkpoints), limits(q, checkpoints)
    after = [*positions[2:], position]
    return max(
        j
        for j in range(1, checkpoints)
        if positions[j] not in kept and after[j - 1] - positions[j - 1] <= limit[j - 1]
    )


def store(positions: Sequence[int], checkpoints: int, position: int) -> list[int]:
    """The positions held once a checkpoint is stored at `position`."""
    held = list(positions)
    if len(held) == checkpoints:
        del held[dropped(positions, checkpoints, position)]
    return [*held, position]


def positions_held(steps: int, checkpoints: int) -> list[int]:
    """The positions held by a loop that stops after `steps` steps; it stores nothing at its end."""
    held = [0]
    while (position := next_store(held, checkpoints)) < steps:
        held = store(held, checkpoints, position)
    return held


def evaluations(steps: int, checkpoints: int) -> int:
    """Steps that run in all: once for the value, and what the reverse sweep makes of each gap."""
    return steps + reverse_evaluations(positions_held(steps, checkpoints), steps, checkpoints)


def reverse_evaluations(positions: Sequence[int], steps: int, checkpoints: int) -> int:
    """Steps that the reverse sweep runs, from the checkpoints at `positions`."""
    gaps = (stop - start for start, stop in pairwise([*positions, steps]))
    return sum(gap + advances(gap, checkpoints - i) for i, gap in enumerate(gaps))
