"""The protocol of progress callbacks."""

from collections.abc import Hashable
from typing import Any, Protocol


class Listener(Hashable, Protocol):
    """Receives reports on the sweeps over loops, which are named "forward" and "reverse".

    `report` holds two integers: the number of steps that the sweep has taken, and the number that
    it takes in total, or `UNKNOWN`. The last report of a reverse sweep holds `UNKNOWN` twice if all
    cotangents are NaN. Equal listeners make equal programs.
    """

    def hear(self, sweep: str, report: Any, note: str = "", *, is_over: bool = False) -> None:
        """A sweep begins (with no step taken), goes on, or is over, perhaps in its first report. A
        note is shown beside its bar."""


UNKNOWN = -1
"""Stands for a number of steps that is unknown."""

FORWARD = "forward"
REVERSE = "reverse"
"""The sweeps."""
