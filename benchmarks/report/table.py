"""A table is data: where its rows come from, and a function of a row for each column."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.report.results import Results, Run, load

Column: TypeAlias = tuple[str, Callable[[Any], str]]

UNIT = re.compile(r"(\d) ([kMG]?B|m?s)\b")

ENOUGH = 7
"""The repetitions from which on a median has a second digit; fewer are noise."""


@dataclass(frozen=True)
class Table:
    """A table of a file of results; `{where}` in its caption is the machine."""

    results: str
    caption: str
    rows: Callable[[Results], Iterable[Any]]
    columns: Sequence[Column]

    @property
    def files(self) -> list[str]:
        return [self.results]

    def __str__(self) -> str:
        results = load(self.results)
        caption = self.caption.format(where=results.where, machine=results.machine)
        return f"{caption}\n\n{markdown(self.columns, self.rows(results))}"


def markdown(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    """Padded, so that it can be read as text too; a number stays in the line of its unit."""
    cells = [[UNIT.sub("\\1\u00a0\\2", cell(row)) for _, cell in columns] for row in rows]
    titles = [title for title, _ in columns]
    widths = [max(3, *map(len, column)) for column in zip(titles, *cells, strict=True)]
    lines = [titles, ["-" * width for width in widths], *cells]
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)


def field(name: str) -> Callable[[Run], str]:
    return lambda run: "" if run[name] is None else str(run[name])


def over(contender: str) -> Callable[[Run], str]:
    """The time as a ratio of medians."""

    def cell(run: Run) -> str:
        other = run.quickest_beside(contender)
        return "" if other is None else ratio(run, other)

    return cell


def ratio(run: Run, other: Run) -> str:
    """The ratio of the medians of two runs, with the digits that their repetitions allow."""
    value = run["median_ms"] / other["median_ms"]
    are_enough = min(run["repetitions"], other["repetitions"]) >= ENOUGH
    return number(value, 2 if are_enough or value < 0.1 else 1)


def memory_of(contender: str) -> Callable[[Run], str]:
    return lambda run: megabytes(run.beside(contender)[0])


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def megabytes(run: Run, digits: int = 2) -> str:
    return f"{run['temp_bytes'] / 1e6:.{digits}f} MB"
