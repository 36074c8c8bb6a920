"""The protocol of progress callbacks."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol


class Listener(Hashable, Protocol):
    """Hears about the sweeps over loops, which are called "forward" and "reverse".

    `report` holds two 32-bit integers: how many steps the sweep has taken, and how many it takes,
    or `UNKNOWN`. The first report of a sweep may be the last. Equal listeners make equal programs.
    """

    def reached(self, sweep: str, report: Any) -> None:
        """A sweep that begins with no step taken, or goes on."""

    def finished(self, sweep: str, report: Any) -> None:
        """A sweep that is over."""


UNKNOWN = -1
"""In place of a number of steps that is not known before the end."""

FORWARD = "forward"
REVERSE = "reverse"
"""The sweeps."""


@dataclass(frozen=True)
class ReverseOnly:
    """The progress of a loop that has run before: its forward sweep is not reported again."""

    listener: Listener


Progress = Listener | ReverseOnly


def when_run_again(progress: Progress | None) -> ReverseOnly | None:
    """The progress of the same loop when it is run again."""
    if progress is None or isinstance(progress, ReverseOnly):
        return progress
    return ReverseOnly(progress)


def listener_of_sweep(progress: Progress | None, sweep: str) -> Listener | None:
    """The listener that a sweep reports to."""
    if isinstance(progress, ReverseOnly):
        return progress.listener if sweep == REVERSE else None
    return progress
