"""Plans from a number of checkpoints, or from a budget."""

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from math import prod
from typing import Any, Literal, TypeAlias, cast

from jax_revolve.schedule import binomial
from jax_revolve.schedule import levels as static
from jax_revolve.schedule.actions import scheduled_blocks, useful_checkpoints
from jax_revolve.schedule.arguments import (
    AnyFunction,
    Memory,
    check_integer,
    mistyped,
    parse_bytes,
    refuse_conflicts,
)
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.selection import (
    MOST_REPETITIONS_BY_DEFAULT,
    all_stored,
    in_segments,
    quickest,
)
from jax_revolve.schedule.storage import (
    HostMemory,
    Storage,
    check_storage,
    codec_of,
    with_room,
)

Checkpoints: TypeAlias = int | Literal["all"] | None
"""A number of carries, `"all"` for one for each block, or `None` for the default."""


def _encoded(plan: AnyFunction) -> AnyFunction:
    @wraps(plan)
    def planned(*args: Any, storage: Any = None, **options: Any) -> Plan:
        found = plan(*args, storage=check_storage(storage), **options)
        return replace(found, codec=codec_of(storage))

    return cast("AnyFunction", planned)


@_encoded
def plan(
    length: int,
    checkpoints: Checkpoints = None,
    *,
    block_size: int | None = None,
    repetitions: int | None = None,
    memory: Memory = None,
    levels: Sequence[int] | None = None,
    state_bytes: int | None = None,
    residual_bytes: int | None = None,
    storage: Storage | None = None,
) -> Plan:
    """The optimal schedule that reverses a loop with a given number of checkpoints, or within a
    given budget.

    It is cheap at any length: every number is a closed formula in exact integers.

    **Arguments:**

    - `length`: the number of steps, an int >= 0.
    - `checkpoints`: the most carries that are stored at once, an int >= 1. The initial carry
        counts. A plan never has more than one for each block. `"all"` stores one for each block.
        `None`, the default, is the fewest with which no step is advanced more than twice: about
        `sqrt(2 * length)`.
    - `block_size`: the most steps that are taped together, an int >= 1. Their residuals are
        kept until they are transposed. The default is 1.

    At most one of the following, instead of `checkpoints`:

    - `repetitions`: the most times that a step may be advanced: an int >= 1. The plan has the
        fewest checkpoints that allow this.
    - `memory`: the most bytes to hold: an int or a string such as `"512MB"` or `"2GiB"`. The plan
        has the fewest evaluations within this budget, with the best checkpoints and, unless it is
        given, the best `block_size`. It needs `state_bytes`, the size of a carry, and
        `residual_bytes`, the size of one step's residuals; `jax_revolve.explain` finds both.

    - `levels`: the numbers of places of several levels of checkpoints, the coarsest first: ints
        >= 2 whose product is at least the number of blocks. With `levels=(a, b)`, `a` carries are
        stored on the way, and `b` in each of the parts between them. Their sum, less one for each
        level but the first, is the number of checkpoints. The plan evaluates a step once more for
        each level, and takes somewhat more memory than a plan on one level with as many
        evaluations. Its loops all have a static length, so a GPU never waits for its host. For
        scans only.

    With `checkpoints` or `memory`, which then count the device alone:

    - `storage`: where further checkpoints are stored: a [`jax_revolve.HostMemory`][] or a
        [`jax_revolve.Disk`][]. Their number is the one with the least predicted time, transfers
        included. If the storage limits its `memory`, `state_bytes` is needed. With
        `checkpoints=0`, a `HostMemory` holds all checkpoints. A [`jax_revolve.Compressed`][], which
        may hold one of these, encodes all checkpoints; `state_bytes` are then the encoded ones.

    **Returns:**

    A [`jax_revolve.Plan`][]: frozen, hashable, printable, and iterable into actions. Its `storage`
    is `None` if no transfer pays off.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not as above, or if no plan satisfies it.

    !!! Example

        ```python
        from jax_revolve import HostMemory, plan

        p = plan(1000, checkpoints=30)
        assert (p.repetitions, p.advances, p.evaluations) == (3, 2475, 3475)
        assert plan(1000, checkpoints=84, block_size=12).evaluations == 1996
        p = plan(1000, levels=(10, 10), block_size=10)
        assert (p.checkpoints, p.evaluations) == (19, 2800)
        p = plan(1000, memory="100kB", state_bytes=1000, residual_bytes=1000)
        assert p.evaluations < 2000
        p = plan(1000, checkpoints=10, storage=HostMemory(transfer=2))
        assert (p.evaluations, p.writes, p.reads) == (2905, 85, 85)
        ```

    ??? cite "Source"

        A. Griewank and A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000. With storage:
        G. Aupy, J. Herrmann, P. Hovland and Y. Robert, "Optimal multistage algorithm for adjoint
        computation", SIAM J. Sci. Comput. 38(3), 2016.
    """
    length = check_integer("length", length, least=0)
    k = 1 if block_size is None else check_integer("block_size", block_size, least=1)
    k = min(k, max(length, 1))
    alternatives = {
        "checkpoints": checkpoints,
        "repetitions": repetitions,
        "levels": levels,
        "memory": memory,
    }
    given = [f"{name}={value!r}" for name, value in alternatives.items() if value is not None]
    if len(given) > 1:
        raise ValueError(
            f"At most one of {', '.join(alternatives)} must be given, but these are: "
            f"{', '.join(given)}."
        )
    storage = check_storage(storage)
    refuse_conflicts({"storage": storage, "repetitions": repetitions, "levels": levels})
    if levels is not None:
        return _on_levels(length, levels, k)
    if storage is not None and storage.memory is not None:
        storage = with_room(storage, _check_bytes("state_bytes", state_bytes))
    if memory is not None:
        state = _check_bytes("state_bytes", state_bytes)
        residuals = _check_bytes("residual_bytes", residual_bytes)
        sizes, memory = Sizes(state, residuals, residuals, state), parse_bytes(memory)
        size = None if block_size is None else k
        return quickest(length, sizes, memory, block_size=size, storage=storage)
    if is_zero(checkpoints) and isinstance(storage, HostMemory):
        return all_stored(length, k, storage)
    blocks = scheduled_blocks(length, k)
    if checkpoints is None:
        most = MOST_REPETITIONS_BY_DEFAULT
        if repetitions is not None:
            most = check_integer("repetitions", repetitions, least=1)
        wanted = binomial.fewest_checkpoints(blocks, most)
    elif checkpoints == "all":
        wanted = max(blocks, 1)
    elif isinstance(checkpoints, str):
        raise ValueError(f"checkpoints must be {_ALLOWED}, but is {checkpoints!r}.")
    else:
        wanted = check_integer("checkpoints", checkpoints, least=1, allowed=_ALLOWED)
    wanted = min(wanted, useful_checkpoints(length, k, is_while=True))
    made = Plan(length, wanted, k)
    return made if storage is None else in_segments(made, storage)


def is_zero(checkpoints: Checkpoints) -> bool:
    """Whether `checkpoints` is 0; `False` is not, so that it raises an error like other bools."""
    return checkpoints == 0 and not isinstance(checkpoints, bool)


def _check_bytes(name: str, value: int | None) -> int:
    allowed = "an int >= 0 where memory is given (jax_revolve.explain finds it)"
    return check_integer(name, value, least=0, allowed=allowed)


def _on_levels(length: int, levels: object, block_size: int) -> Plan:
    """The plan with these levels. The first may get fewer places."""
    allowed = "a sequence of ints >= 2 (checkpoints on each level, the coarsest first)"
    if not isinstance(levels, Sequence) or isinstance(levels, str):
        raise mistyped("levels", levels, allowed)
    counts = [check_integer("levels", n, least=2, allowed=allowed) for n in levels]
    blocks = -(-length // block_size)
    if prod(counts) < blocks or not counts:
        raise ValueError(
            f"levels must have a product of at least {blocks}, the number of blocks of "
            f"{block_size} steps, but is {levels!r}. Pass more places, or a larger block_size."
        )
    while len(counts) > 1 and prod(counts[1:]) >= blocks:  # the first would have a single part
        counts = counts[1:]
    if len(counts) == 1:
        return Plan(length, max(blocks, 1), block_size)
    counts[0] = -(-blocks // prod(counts[1:]))
    return Plan(length, static.checkpoints(tuple(counts)), block_size, levels=tuple(counts))


_ALLOWED = (
    'an int >= 1 (stored carries, the initial one included), "all" or None; 0 only with '
    "storage=HostMemory(...)"
)
