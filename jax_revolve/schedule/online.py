"""Where a loop of unknown length stores checkpoints as it runs, in exact integers.

    stored = [0]
    while the loop runs:
        if the step is next_store(stored):
            if all slots are taken: drop one                    # `dropped`
            stored.append(the step)

The reverse sweep knows the length n of the loop, and is optimal for the positions that are stored:
the steps between two neighboring checkpoints, a *gap*, are reversed as a loop of their own, with
all slots that earlier checkpoints leave. Since the value of the loop is needed first, the
optimum is n + t(n + 1, s) evaluations. It is met if there is one q, the *level* of the loop, such
that each gap i is between beta(s - i, q - 1) and beta(s - i, q) steps long.

The rule keeps every gap except the last within the upper limit of the level. It is exact up to n =
C(s + 2, 2). For all longer loops that we tried, up to n = 300000, it is within 10.4 % of the
optimum for s = 2, 6 % for s >= 3, 1 % for s >= 12 and 0.2 % for s >= 20, and much closer on
average.

1. The *landmarks* of a level are the checkpoints that the offline schedule places in the longest
   loop of the level, and the end of that loop. The rule stores at every landmark, and keeps the
   landmarks of the current level.
2. Between landmarks it stores at every 2 q-th step. The limit of the last slot would be q + 1
   steps, but a new gap is short at first: longer gaps cost little, and halve the number of stores.
3. To free a slot, it drops the newest checkpoint that is not a landmark of the level and whose
   removal leaves a gap within the limit. The oldest checkpoint that is not a landmark always
   qualifies: those before it are landmarks, the one after it is at the next landmark or earlier,
   and the limit reaches that far.

Sources: P. Stumm and A. Walther, "New algorithms for optimal online checkpointing", SIAM J. Sci.
Comput. 32(2), 2010, for the range in which an online schedule can be exact; Q. Wang, P. Moin and G.
Iaccarino, "Minimal repetition dynamic checkpointing algorithm for unsteady adjoint calculation",
SIAM J. Sci. Comput. 31(4), 2009, for replacing checkpoints level by level. The rule itself is in
neither paper.
"""

from collections.abc import Sequence
from itertools import pairwise

from jax_revolve.schedule.binomial import advances, beta, repetition

NEVER = 2**31 - 1
"""A position that no loop reaches: steps are counted in 32 bits."""


def level(steps: int, checkpoints: int) -> int:
    """The level q of a loop, at least 1: beta(s, q) <= n < beta(s, q + 1).

    Each of its steps is advanced once for the value and, at best, at most q times in reverse.
    """
    return max(repetition(steps + 1, checkpoints) - 1, 1)


def landmarks(level: int, checkpoints: int) -> list[int]:
    """The checkpoints that Revolve places in the longest loop of a level, without 0, and the end of
    that loop. The gaps between them are beta(s, q), beta(s - 1, q), ..., beta(1, q)."""
    end = beta(checkpoints, level + 1)
    return [end - beta(free, level + 1) for free in reversed(range(checkpoints))]


def limits(level: int, checkpoints: int) -> list[int]:
    """The longest gaps that dropping checkpoint 1, ..., s - 1 may leave. The gap that checkpoint j
    leaves is reversed with s - j + 1 slots."""
    return [beta(slots, level) for slots in range(checkpoints, 1, -1)]


def next_store(positions: Sequence[int], checkpoints: int) -> int:
    """The position of the next checkpoint, if the loop gets there; `NEVER` with one slot."""
    newest = positions[-1]
    if checkpoints == 1:
        return NEVER
    if len(positions) < checkpoints:
        return newest + 1
    # At level 1, loops of newest + 3 steps and more need the next checkpoint.
    q = level(newest + 3, checkpoints)
    return min(newest + 2 * q, *(p for p in landmarks(q, checkpoints) if p > newest))


def dropped(positions: Sequence[int], checkpoints: int, position: int) -> int:
    """The index of the position that is dropped for a checkpoint at `position`."""
    q = level(position + 1, checkpoints)
    kept, limit = landmarks(q, checkpoints), limits(q, checkpoints)
    after = [*positions[2:], position]
    return max(
        j
        for j in range(1, checkpoints)
        if positions[j] not in kept and after[j - 1] - positions[j - 1] <= limit[j - 1]
    )


def store(positions: Sequence[int], checkpoints: int, position: int) -> list[int]:
    """The stored positions after a checkpoint is stored at `position`."""
    stored = list(positions)
    if len(stored) == checkpoints:
        del stored[dropped(positions, checkpoints, position)]
    return [*stored, position]


def positions_held(steps: int, checkpoints: int) -> list[int]:
    """The stored positions when a loop stops after `steps` steps. Nothing is stored at its end."""
    stored = [0]
    while (position := next_store(stored, checkpoints)) < steps:
        stored = store(stored, checkpoints, position)
    return stored


def evaluations(steps: int, checkpoints: int) -> int:
    """All evaluations: `steps` for the value, and the reverse sweep's."""
    return steps + reverse_evaluations(positions_held(steps, checkpoints), steps, checkpoints)


def reverse_evaluations(positions: Sequence[int], steps: int, checkpoints: int) -> int:
    """The evaluations of the reverse sweep, from the checkpoints at `positions`."""
    gaps = (stop - start for start, stop in pairwise([*positions, steps]))
    return sum(gap + advances(gap, checkpoints - i) for i, gap in enumerate(gaps))
