"""A table is data: where its rows come from, and a cell for each column."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, TypeAlias

from benchmarks.report.results import Results, Run

Cell: TypeAlias = str | Callable[[Any], str]
"""A function of a row, or a template such as "{median_ms:.1f} ms" for the fields of a run, which is
empty where one of them is `None`."""

Column: TypeAlias = tuple[str, Cell]

UNIT = re.compile(r"(?<=\d) (?=([kMG]?B|m?s|bytes)\b)")

ENOUGH = 7
"""The repetitions from which on a median has a second digit; fewer are noise."""


@dataclass(frozen=True)
class Table:
    """A table of a file of results; `{where}` in its caption is the machine."""

    caption: str
    rows: Callable[[Results], Iterable[Any]]
    columns: Sequence[Column]

    def of(self, results: Results) -> str:
        caption = self.caption.format(where=results.where, machine=results.machine)
        return f"{caption}\n\n{markdown(self.columns, self.rows(results))}"


def tidy(text: str) -> str:
    """A number stays in the line of its unit, and one of a thing is singular."""
    return UNIT.sub("\u00a0", re.sub("^1 checkpoints", "1 checkpoint", text))


def markdown(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    """Padded, so that it can be read as text too."""
    cells = [[tidy(text(cell, row)) for _, cell in columns] for row in rows]
    titles = [title for title, _ in columns]
    widths = [max(3, *map(len, column)) for column in zip(titles, *cells, strict=True)]
    lines = [titles, ["-" * width for width in widths], *cells]
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)


def text(cell: Cell, row: Any) -> str:
    if not isinstance(cell, str):
        return cell(row)
    names = [name.partition("[")[0] for _, name, _, _ in Formatter().parse(cell) if name]
    return "" if any(row[name] is None for name in names) else cell.format_map(row)


def of(key: Any, cell: Cell, missing: str = "") -> Callable[[Any], str]:
    """The cell of one of the runs of a row, a tuple or a dictionary by contender."""

    def found(row: Any) -> str:
        return missing if isinstance(row, dict) and key not in row else text(cell, row[key])

    return found


def over(contender: str) -> Callable[[Run], str]:
    """The time as a ratio of medians."""

    def cell(run: Run) -> str:
        others = run.beside(contender)
        return ratio(run, min(others, key=lambda r: r["median_ms"])) if others else ""

    return cell


def ratio(run: Run, other: Run) -> str:
    """The ratio of the medians of two runs, with the digits that their repetitions allow."""
    value = run["median_ms"] / other["median_ms"]
    are_enough = min(run["repetitions"], other["repetitions"]) >= ENOUGH
    return f"{value:.{2 if are_enough or value < 0.1 else 1}f}"
