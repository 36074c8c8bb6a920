"""Tables of what was measured."""

from collections.abc import Iterator, Sequence

from goals import Goal, memory_ratio, time_ratios
from measurements import Measurement

COLUMNS = (
    "contender", "s", "ms", "least ms", "runs", "/ plain", "/ equinox", "/ nested",
    "MB", "less memory", "evaluations",
)  # fmt: skip


def measurement_table(measurements: Sequence[Measurement]) -> str:
    """One workload: its value, its derivative, its gradient.

    "ms" is the median; each "/" column is the ratio of medians, those to Equinox and to nested
    scans at equal s; "less memory" is how many times less temporary memory than `lax.scan`.
    """
    lines = [measurements[0].workload]
    for quantity in dict.fromkeys(m.quantity for m in measurements):
        chosen = [m for m in measurements if m.quantity == quantity]
        lines += ["", quantity, *_align([COLUMNS, *(_row(m, chosen) for m in chosen)])]
    return "\n".join(lines)


def goal_table(goals: Sequence[Goal]) -> str:
    rows = [("workload", "goal", "bound", "measured", "verdict")]
    for goal in goals:
        bound = f"{'>=' if goal.at_least else '<='} {goal.bound:g}"
        rows.append((goal.workload, goal.what, bound, _number(goal.measured, 3), goal.verdict))
    return "\n".join(_align(rows, words=2))


def _row(m: Measurement, measurements: list[Measurement]) -> tuple[str, ...]:
    ratios = time_ratios(m, measurements)
    return (
        f"{m.contender} {m.detail}".strip(),
        "" if m.checkpoints is None else str(m.checkpoints),
        _number(m.median_ms, 2),
        _number(m.minimum_ms, 2),
        str(m.repetitions),
        *(_number(ratios[rival], 3) for rival in ("plain", "equinox", "nested")),
        _number(None if m.temp_bytes is None else m.temp_bytes / 1e6, 3),
        _number(memory_ratio(m, measurements), 1),
        "" if m.evaluations is None else str(m.evaluations),
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _align(rows: Sequence[tuple[str, ...]], words: int = 1) -> Iterator[str]:
    """Rows as lines; the first `words` columns are set left, the numbers right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i < words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
