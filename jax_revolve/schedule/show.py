"""A schedule as text for a terminal, and as a picture: its actions are run, and what they do is
noted."""

from collections.abc import Iterator
from textwrap import wrap
from typing import Any, TypeAlias

from jax_revolve.schedule.actions import Advance, Discard, Free, Store, Tape, Write
from jax_revolve.schedule.arguments import check_integer
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan

Line: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

MOST_BLOCKS = 100_000
NARROWEST_TEXT = 20
MOST_ROWS = 30
WIDEST_BLOCK = 4
LEGEND = ["o checkpoint held", "> advanced", "# taped, transposed", ". waiting"]
MISSING = "plot() needs matplotlib: pip install matplotlib"

STORED, HELD, ADVANCED, TAPED = "in storage", "checkpoint held", "advanced", "taped, transposed"
STYLES = {STORED: ("#009E73", 1), HELD: ("#808080", 1), ADVANCED: ("#0072B2", 1)}
STYLES[TAPED] = ("#D55E00", 2)
"""Colors that the color-blind tell apart (Okabe and Ito), and weights."""


def as_text(plan: AnyPlan, width: int = 79) -> str:
    """The schedule as text: steps go to the right, and time goes down.

    A line is a *sweep*, from a checkpoint to the last block that is waiting, which is taped next.
    If steps are taped one by one, the first line is the sweep to the end of the loop. In long loops
    a line sums up several sweeps: the steps that they advance and tape, and the checkpoints that
    the last of them holds. The number on the left counts the evaluations up to the end of the line.
    """
    width = check_integer("width", width, least=NARROWEST_TEXT)
    lines = wrap(str(plan), width)
    if plan.length == 0:
        return "\n".join(lines)
    margin = max(len("evaluations"), len(str(plan.evaluations))) + 2
    margin = margin if width - margin >= MOST_ROWS else 0
    rows = min(plan.blocks, MOST_ROWS, width - margin)
    columns = rows * min((width - margin) // rows, WIDEST_BLOCK)
    lines.append("evaluations  ".rjust(margin)[:margin] + _axis(plan, columns, width - margin))
    drawn = list(_rows(plan, rows, columns))
    lines += [f"{clock}  ".rjust(margin)[:margin] + row for clock, row in drawn]
    entries = [*LEGEND, *(f"@ {label}" for label in _transfers(plan))]
    legend = "   ".join(entries)
    lines += [legend] if len(legend) <= width else [x for e in entries for x in wrap(e, width)]
    if rows < plan.blocks:
        lines += wrap(f"{plan.scheduled_blocks} sweeps, summed up in {len(drawn)} lines", width)
    return "\n".join(lines)


def _transfers(plan: AnyPlan) -> list[str]:
    """The label of the storage, if it holds anything."""
    if not isinstance(plan, TwoLevelPlan) or not plan.writes:
        return []
    return [f"{STORED} ({plan.writes} writes, {plan.reads} reads)"]


def _axis(plan: AnyPlan, columns: int, width: int) -> str:
    """Marks at round numbers of steps, each followed by its number."""
    steps = plan.blocks * plan.block_size
    least = len(str(plan.length)) + 2
    exponents = range(len(str(steps)) + 1)
    distances = (digit * 10**exponent for exponent in exponents for digit in (1, 2, 5))
    distance = next(d for d in distances if d * columns >= least * steps)
    axis = ""
    for step in range(0, plan.length, distance):
        mark = f"{'':{step * columns // steps - len(axis)}}|{step}"
        if len(axis + mark) <= width:
            axis += mark
    return axis + " steps" if len(axis + " steps") <= width else axis


def _rows(plan: AnyPlan, rows: int, columns: int) -> Iterator[tuple[int, str]]:
    """The rows, of about as many blocks each, and the evaluations up to the end of each."""
    steps = plan.blocks * plan.block_size

    def column(step: int) -> int:
        return step * columns // steps

    # A row ends when the loop does, or when the first of its blocks has been taped.
    ends = [plan.block_size * (plan.blocks * i // rows) for i in range(rows)]
    ends += [plan.length] * (plan.scheduled_blocks - plan.blocks)
    stored, held, advanced, taped = drawn_lines(plan).values()
    clock, right = 0, columns
    for end in reversed(ends):
        before, clock = clock, plan.length
        if end < plan.length:
            clock = next(t + high - end for (t, high), (_, low) in taped if low <= end < high)
        first = min([end, *(low for (t, low), _ in advanced if before <= t < clock)])
        left, start = column(first), -(-end * columns // steps)
        row = [*"." * left, *">" * (start - left), *"#" * (right - start)]
        sweep_end = clock - min(plan.block_size, plan.length - end)
        for mark, lines in ("o", held), ("@", stored):
            for (begin, step), (until, _) in lines:
                place = column(step)
                if begin <= sweep_end < until and (place < start or start + 1 < right):
                    row[place] = mark
        yield clock, "".join(row)
        right = start


def picture(plan: AnyPlan, ax: Any = None) -> Any:
    """The schedule in Matplotlib, steps over evaluations, in these axes or new ones."""
    layers = drawn_lines(plan)
    ax = new_axes() if ax is None else ax
    from matplotlib import collections, ticker

    thin = max(0.6, 2 - sum(map(len, layers.values())) / 200)
    for name, lines in layers.items():
        (color, weight), label = STYLES[name], name
        if name == STORED:
            (label,) = _transfers(plan) or [""]
        style = {"colors": color, "linewidths": weight * thin, "label": label}
        if label:
            ax.add_collection(collections.LineCollection(lines, **style))
    ax.update_datalim([(0, 0), (float(plan.evaluations or 1), float(plan.length or 1))])
    ax.margins(0.02)
    ax.autoscale_view()
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(ticker.MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        if plan.evaluations >= 10**5:
            axis.set_major_formatter(ticker.EngFormatter())
    ax.set(xlabel="evaluations", ylabel="step")
    _explain(ax, str(plan))
    return ax


def drawn_lines(plan: AnyPlan) -> dict[str, list[Line]]:
    """The lines of a picture, each from one (evaluations, step) to another."""
    if plan.blocks > MOST_BLOCKS:
        raise ValueError(
            f"blocks must be at most {MOST_BLOCKS} in a plan that is drawn, but are {plan.blocks}. "
            "Draw the plan of a shorter loop, such as jax_revolve.longest_plan(...) of fewer "
            "checkpoints and as many repetitions."
        )
    found: dict[str, list[Line]] = {name: [] for name in STYLES}
    begun = dict[tuple[str, int], tuple[int, int]]()
    clock = 0
    for action in plan:
        match action:
            case Store(place, position) | Write(place, position):
                name = HELD if isinstance(action, Store) else STORED
                begun.setdefault((name, place), (clock, position))
            case Free(place) | Discard(place):
                name = HELD if isinstance(action, Free) else STORED
                begin = begun.pop((name, place))
                found[name].append((begin, (clock, begin[1])))
            case Advance(start, stop) | Tape(start, stop):
                name = ADVANCED if isinstance(action, Advance) else TAPED
                low, high = (start, stop) if name == ADVANCED else (stop, start)
                begin, end, lines = (clock, low), (clock + stop - start, high), found[name]
                if lines and lines[-1][1] == begin:  # this one continues the last
                    begin = lines.pop()[0]
                lines.append((begin, end))
                clock = end[0]
            case _:
                pass
    return found


def new_axes() -> Any:
    """The axes of a new figure."""
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise  # Matplotlib is there, and lacks something itself
        raise ModuleNotFoundError(MISSING, name="matplotlib") from error
    return pyplot.subplots(figsize=(8, 4.5), layout="constrained")[1]


def _explain(ax: Any, summary: str) -> None:
    """Add a title of several lines, and between it and the axes a legend of one line."""
    most = max(int(15 * ax.bbox.width / ax.figure.dpi), 20)
    rows = -(-len(summary) // most)
    title = "\n".join(wrap(summary, len(summary) // rows + 8))
    ax.set_title(title, fontsize="small", pad=17)
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "borderaxespad": 0.1, "ncols": 4}
    form = {"columnspacing": 1, "handlelength": 1, "borderpad": 0.2, "frameon": False}
    for handle in ax.legend(fontsize="small", **place, **form).legend_handles:
        handle.set_linewidth(2)
