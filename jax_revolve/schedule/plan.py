"""The plan: what callers see of a schedule."""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeAlias

from jax_revolve.schedule import binomial
from jax_revolve.schedule.actions import Action, revolve

Checkpoints: TypeAlias = int | Literal["all"] | None

MOST_REPETITIONS_BY_DEFAULT = 2
MOST_REPETITIONS_TO_A_BOUND = 3

LONGEST = 2**31 - 2
"""The most steps of a scan. Positions are 32-bit integers on the device, and one more than the last
step is counted."""

LARGEST_BOUND = 2**31 - 1
"""The most steps of a while loop, which is counted up to its bound."""


@dataclass(frozen=True)
class Plan:
    """How a loop of `length` steps is reversed with `checkpoints` stored carries.

    Made by [`jax_revolve.plan`][]. Iterating over a plan gives its actions one by one, in the order
    in which they run; it takes no memory, however long the loop.
    """

    length: int
    checkpoints: int

    @property
    def repetitions(self) -> int:
        """The repetition number: no step is advanced more often than this."""
        return binomial.repetition(self.length, self.checkpoints)

    @property
    def advances(self) -> int:
        """Steps that run without being taped, t(n, s): the least possible number."""
        return binomial.advances(self.length, self.checkpoints)

    @property
    def evaluations(self) -> int:
        """Steps that run in all, F(n, s) = n + t(n, s): every step is taped once.

        In JAX the value is complete before its derivative is asked for. The last step is then
        evaluated for the value and cannot be taped at once; this costs at most `repetitions + 1`
        evaluations more.
        """
        return self.length + self.advances

    @property
    def overhead(self) -> float:
        """Advances per step: how many forward passes there are on top of the taped one."""
        return self.advances / self.length if self.length else 0.0

    def __iter__(self) -> Iterator[Action]:
        return revolve(self.length, self.checkpoints)

    def __str__(self) -> str:
        return (
            f"{self.length} steps, {self.checkpoints} checkpoints: {self.evaluations} evaluations "
            f"({self.overhead:.2f} extra forward passes, no step advanced more than "
            f"{self.repetitions} times)"
        )


def plan(length: int, checkpoints: Checkpoints = None) -> Plan:
    """The optimal schedule for reversing a loop with a given number of stored carries.

    Costs nothing, whatever the length: every number is a closed formula in exact integers.

    **Arguments:**

    - `length`: the number of steps, an int >= 0.
    - `checkpoints`: how many carries may be stored at once, the initial one included: an int >= 1.
        More than `length` are never used. `"all"` stores every carry. `None`, the default, takes
        the fewest with which no step is advanced more than twice: about `sqrt(2 * length)`.

    **Returns:**

    A [`jax_revolve.Plan`][]: frozen, hashable, printable, and iterable into actions.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not one of the above.

    !!! Example

        ```python
        from jax_revolve import plan

        p = plan(1000, checkpoints=30)
        assert (p.repetitions, p.advances, p.evaluations) == (3, 2472, 3472)
        ```

    ??? cite "Source"

        A. Griewank and A. Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000.
    """
    length = _check_integer("length", length, least=0)
    most = max(length, 1)
    if checkpoints is None:
        checkpoints = binomial.fewest_checkpoints(length, MOST_REPETITIONS_BY_DEFAULT)
    elif isinstance(checkpoints, str):
        if checkpoints != "all":
            raise ValueError(f"checkpoints must be {_ALLOWED}, but is {checkpoints!r}.")
        checkpoints = most
    else:
        checkpoints = _check_integer("checkpoints", checkpoints, least=1, allowed=_ALLOWED)
    return Plan(length, min(checkpoints, most))


def plan_for_scan(length: int, checkpoints: Checkpoints) -> Plan:
    """The plan of a scan of `length` steps."""
    if length > LONGEST:
        raise ValueError(
            f"length must be at most {LONGEST}, but is {length}. Nest two loops instead."
        )
    return plan(length, checkpoints)


def plan_for_bound(max_steps: int | None, checkpoints: Checkpoints) -> Plan | None:
    """The plan of a loop that takes `max_steps` steps at most; `None` if it cannot be reversed.

    Most loops stop long before their bound. The default is therefore the fewest checkpoints with
    which no step is advanced more than three times, even at the bound: about
    `(6 * max_steps) ** (1 / 3)`.
    """
    if max_steps is not None:
        max_steps = _check_integer("max_steps", max_steps, least=0, allowed=_ALLOWED_BOUND)
        if max_steps > LARGEST_BOUND:
            raise ValueError(f"max_steps must be {_ALLOWED_BOUND}, but is {max_steps}.")
        if checkpoints is None:
            checkpoints = binomial.fewest_checkpoints(max_steps, MOST_REPETITIONS_TO_A_BOUND)
        return plan(max_steps, checkpoints)
    if isinstance(checkpoints, str):
        raise ValueError(
            f"checkpoints must be an int >= 1 or None where max_steps is None, but is "
            f"{checkpoints!r}: how many there would be is not known. Pass max_steps."
        )
    return None if checkpoints is None else plan(LARGEST_BOUND, checkpoints)


_ALLOWED_BOUND = f"None or an int from 0 to {LARGEST_BOUND}, known when the loop is traced"

_ALLOWED = 'an int >= 1 (stored carries, the initial one included), "all" or None'


def _check_integer(name: str, value: object, *, least: int, allowed: str | None = None) -> int:
    allowed = allowed or f"an int >= {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(
            f"{name} must be {allowed}, but is {value!r} of type {type(value).__name__}."
        )
    if value < least:
        raise ValueError(f"{name} must be {allowed}, but is {int(value)}.")
    return int(value)
