"""The protocol of progress callbacks."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol


class Listener(Hashable, Protocol):
    """Receives reports on the sweeps over loops, which are named "forward" and "reverse".

    `report` holds two 32-bit integers: the number of steps that the sweep has taken, and the number
    that it takes in total, or `UNKNOWN`. Equal listeners make equal programs.
    """

    def hear(self, sweep: str, report: Any, note: str = "", *, is_over: bool = False) -> None:
        """A sweep begins (with no step taken), goes on, or is over, perhaps in its first report. A
        note is shown beside its bar."""


UNKNOWN = -1
"""Stands for a number of steps that is unknown before the end."""

FORWARD = "forward"
REVERSE = "reverse"
"""The sweeps."""


@dataclass(frozen=True)
class ReverseOnly:
    """The progress of a recomputed loop, whose forward sweep is not reported again."""

    listener: Listener


Progress = Listener | ReverseOnly


def when_run_again(progress: Progress | None) -> ReverseOnly | None:
    """The progress of a loop when it is recomputed."""
    if progress is None or isinstance(progress, ReverseOnly):
        return progress
    return ReverseOnly(progress)
