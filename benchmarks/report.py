"""Tables of what was measured."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from goals import Goal
from measurements import Measurement

from jax_revolve.schedule.report.table import aligned

TimeRatios: TypeAlias = Callable[[Measurement, list[Measurement]], dict[str, float | None]]
MemoryRatio: TypeAlias = Callable[[Measurement, list[Measurement]], float | None]


def measurement_table(
    measurements: Sequence[Measurement],
    time_ratios: TimeRatios,
    memory_ratio: MemoryRatio,
    memory_title: str,
) -> str:
    """One workload: its value, its derivatives, its gradient.

    "ms" is the median; each "/" column is the ratio of medians, to a rival with checkpoints at
    equal s; "MB" is temporary memory, and `memory_title` stands over its ratio to that of another
    contender. Columns without any number are left out.
    """
    lines = [measurements[0].workload]
    for quantity in dict.fromkeys(m.quantity for m in measurements):
        chosen = [m for m in measurements if m.quantity == quantity]
        rows = [
            _cells(m, time_ratios(m, chosen), {memory_title: memory_ratio(m, chosen)})
            for m in chosen
        ]
        titles = [title for title in rows[0] if any(row[title] for row in rows)]
        cells = [tuple(row[title] for title in titles) for row in rows]
        lines += ["", quantity, *aligned([tuple(titles), *cells], words=1)]
    return "\n".join(lines)


def goal_table(goals: Sequence[Goal]) -> str:
    rows = [("workload", "goal", "bound", "measured", "verdict")]
    for goal in goals:
        bound = f"{'>=' if goal.at_least else '<='} {goal.bound:g}"
        rows.append((goal.workload, goal.what, bound, _number(goal.measured, 3), goal.verdict))
    return "\n".join(aligned(rows, words=2))


def _cells(
    m: Measurement, time_ratios: dict[str, float | None], memory_ratio: dict[str, float | None]
) -> dict[str, str]:
    """A row of the table, by the titles of its columns."""
    return {
        "contender": f"{m.contender} {m.detail}".strip(),
        "s": _count(m.checkpoints),
        "k": _count(m.block),
        "ms": _number(m.median_ms, 2),
        "least ms": _number(m.minimum_ms, 2),
        "runs": str(m.repetitions),
        **{f"/ {rival}": _number(ratio, 3) for rival, ratio in time_ratios.items()},
        "MB": _megabytes(m.temp_bytes),
        **{title: _ratio(ratio) for title, ratio in memory_ratio.items()},
        "budget MB": _megabytes(m.budget),
        "evaluations": _count(m.evaluations),
    }


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


def _megabytes(size: int | None) -> str:
    return _number(None if size is None else size / 1e6, 3)


def _ratio(value: float | None) -> str:
    return _number(value, 3 if value is not None and value < 1 else 1)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
