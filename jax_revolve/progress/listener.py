"""The protocol of progress callbacks."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol


class Listener(Hashable, Protocol):
    """Receives reports on the sweeps over loops, which are named "forward" and "reverse".

    `report` holds two 32-bit integers: the number of steps that the sweep has taken, and the number
    that it takes in total, or `UNKNOWN`. The first report of a sweep may be its last. Equal
    listeners make equal programs.
    """

    def reached(self, sweep: str, report: Any, note: str = "") -> None:
        """A sweep begins, with no step taken, or goes on. A note is shown beside its bar."""

    def finished(self, sweep: str, report: Any) -> None:
        """A sweep is over."""


UNKNOWN = -1
"""In place of a number of steps that is unknown before the end."""

FORWARD = "forward"
REVERSE = "reverse"
"""The sweeps."""


@dataclass(frozen=True)
class ReverseOnly:
    """The progress of a loop that has run before: its forward sweep is not reported again."""

    listener: Listener


Progress = Listener | ReverseOnly


def when_run_again(progress: Progress | None) -> ReverseOnly | None:
    """The progress of the same loop when it runs again."""
    if progress is None or isinstance(progress, ReverseOnly):
        return progress
    return ReverseOnly(progress)


def listener_of_sweep(progress: Progress | None, sweep: str) -> Listener | None:
    """The listener that a sweep reports to."""
    if isinstance(progress, ReverseOnly):
        return progress.listener if sweep == REVERSE else None
    return progress
