"""A schedule as text for a terminal, and as a picture, from its `parts`."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from textwrap import wrap
from typing import Any, TypeAlias

from jax_revolve.schedule import binomial
from jax_revolve.schedule.actions import Action, Advance, Free, Store, Tape
from jax_revolve.schedule.arguments import check_integer
from jax_revolve.schedule.plan import Plan, Reversal
from jax_revolve.schedule.report.parts import Actions, Part, Parts, stores
from jax_revolve.schedule.two_level import TwoLevelPlan

Line: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

NARROWEST_TEXT = 20
MOST_ROWS = 30
WIDEST_BLOCK = 4
LEGEND = ["o checkpoint held", "> advanced", "# taped, transposed", ". waiting"]
MISSING = 'plot() needs matplotlib: pip install "jax_revolve[plot]"'

RESOLUTION = 4000
"""The number of cells of a picture in each direction: a cell is smaller than a pixel."""

HELD = ("checkpoint held", "#808080", 1)
ADVANCED = ("advanced", "#0072B2", 1)
TAPED = ("taped, transposed", "#D55E00", 2)
STORED = "#009E73"
"""Labels, weights, and colors that the color-blind tell apart (Okabe and Ito)."""


def as_text(plan: Reversal, width: int = 79) -> str:
    """The schedule as text: steps go to the right, and time goes down.

    A line is a *sweep*, from a checkpoint to the last block that is waiting, which is taped next.
    If steps are taped one by one, the first line is the sweep to the end of the loop. In long loops
    a line sums up several sweeps: the steps that they advance and tape, and the checkpoints that
    they hold. The number on the left counts the evaluations up to the end of the line.
    """
    width = check_integer("width", width, least=NARROWEST_TEXT)
    lines = wrap(str(plan), width)
    if plan.length == 0:
        return "\n".join(lines)
    margin = max(len("evaluations"), len(str(plan.evaluations))) + 2
    margin = margin if width - margin >= MOST_ROWS else 0
    drawn = _coarse(plan)
    rows = min(drawn.blocks, MOST_ROWS, width - margin)
    cell = min((width - margin) // rows, WIDEST_BLOCK)
    lines.append("evaluations  ".rjust(margin)[:margin] + _axis(plan, rows * cell, width - margin))
    drawn_rows = list(_rows(drawn, rows, cell))
    for row, left in drawn_rows:
        lines.append(f"{plan.evaluations - left}  ".rjust(margin)[:margin] + row)
    entries = [*LEGEND, *(f"@ {label}" for label in _stored(plan))]
    legend = "   ".join(entries)
    lines += [legend] if len(legend) <= width else [x for e in entries for x in wrap(e, width)]
    if rows < plan.blocks:
        sweeps = f"{plan.scheduled_blocks} sweeps, summed up in {len(drawn_rows)} lines"
        lines += wrap(sweeps, width)
    return "\n".join(lines)


def _stored(plan: Reversal) -> list[str]:
    """The label of the storage, if it holds anything."""
    if not isinstance(plan, TwoLevelPlan) or not plan.writes:
        return []
    return [f"in storage ({plan.writes} writes, {plan.reads} reads)"]


def _coarse(plan: Reversal) -> Reversal:
    """The plan in fewer blocks, if it stores every carry: it looks the same, and may store
    millions."""
    if plan.blocks <= RESOLUTION or plan.repetitions > 1 or stores(plan):
        return plan
    block_size = -(-plan.length // RESOLUTION)
    return replace(plan, checkpoints=-(-plan.length // block_size), block_size=block_size)


def _axis(plan: Reversal, columns: int, width: int) -> str:
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


def _rows(plan: Reversal, rows: int, cell: int) -> Iterator[tuple[str, int]]:
    """The rows, each about `cell` columns shorter than the last, and the evaluations left after
    each. If the end of the loop is a block of the schedule, it has a row and no columns.

    The lowest advance starts from the source of the last part that was begun in the row. If none
    was begun, it starts from the newest checkpoint that was held throughout the row: at its
    beginning and at its end.
    """
    parts = Actions(plan) if isinstance(plan, Plan) and plan.levels else Parts(plan)
    before, columns = [0], rows * cell
    least, end = max(plan.blocks // (16 * columns), 1), columns
    stored = stores(plan)
    targets = [plan.blocks * i // rows for i in reversed(range(rows))]
    if plan.scheduled_blocks > plan.blocks:
        targets.insert(0, plan.blocks)
    for target in targets:
        held, source = parts.leave(target, least)
        taped = -(-target * columns // plan.blocks)
        source = max(set(before).intersection(held)) if source is None else source
        loaded = source * columns // plan.blocks
        row = [*"." * loaded, *">" * (taped - loaded), *"#" * (end - taped)]
        for mark, positions in ("o", held), ("@", stored[: bisect_right(stored, target)]):
            for column in {position * columns // plan.blocks for position in positions}:
                if column < taped or taped + 1 < end:
                    row[column] = mark
        yield "".join(row), parts.left
        before, end = parts.held, taped


def picture(plan: Reversal, ax: Any = None) -> Any:
    """The schedule in Matplotlib: steps over evaluations.

    Lines that are narrower than a pixel are merged, so their number does not grow with the length
    of the loop. Returns the axes, by default those of a new figure.
    """
    ax = new_axes() if ax is None else ax
    from matplotlib import collections, ticker

    drawing = Drawing(plan)
    layers = {HELD: drawing.held, ADVANCED: drawing.advanced, TAPED: drawing.taped}
    for label in _stored(plan):
        layers = {(label, STORED, 1): drawing.stored, **layers}
    thin = max(0.6, 2 - sum(map(len, layers.values())) / 200)
    for (label, color, weight), lines in layers.items():
        style = {"colors": color, "linewidths": weight * thin, "label": label}
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


def new_axes() -> Any:
    """The axes of a new figure."""
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise  # Matplotlib is there, and lacks something itself
        raise ModuleNotFoundError(MISSING) from error
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


class Drawing:
    """The lines of a picture, each from one (evaluations, step) to another."""

    def __init__(self, plan: Reversal) -> None:
        self.block_size, self.length, self.total = plan.block_size, plan.length, plan.evaluations
        self.narrow, self.low = self.total // RESOLUTION, max(plan.blocks // RESOLUTION, 1)
        self.parts = Parts(replace(plan, levels=()) if isinstance(plan, Plan) else plan)
        self.held: list[Line] = []
        self.advanced: list[Line] = []
        self.taped: list[Line] = []
        self.stored: list[Line] = []
        self.stores, drawn = set[int](), -1
        for position in stores(plan):
            if position // self.low > drawn:
                self.stores.add(position)
                drawn = position // self.low
        if isinstance(plan, Plan) and plan.levels:
            self.run(plan)
            return
        while self.parts.stack:
            self.reverse(self.parts.stack.pop())

    def run(self, actions: Iterable[Action]) -> None:
        """Draw a plan on levels, action by action."""
        clock, stored = 0, dict[int, tuple[int, int]]()
        for action in actions:
            match action:
                case Store(slot, position):
                    stored.setdefault(slot, (clock, position))
                case Free(slot):
                    begin, position = stored.pop(slot)
                    if clock - begin > self.narrow:
                        self.held.append(_level(position, begin, clock))
                case Advance(start, stop):
                    begin, clock = clock, clock + stop - start
                    _draw(self.advanced, ((begin, start), (clock, stop)), self.total)
                case Tape(start, stop):
                    begin, clock = clock, clock + stop - start
                    _draw(self.taped, ((begin, stop), (clock, start)), self.narrow)
                case _:
                    pass

    def reverse(self, part: Part) -> None:
        """Draw the uppermost piece of a part, and push the rest of it as parts."""
        start, stop, slots, left, source = part
        clock = self.total - left
        if source is not None:
            clock = self.begin(part, clock, source)
        while slots < stop - start - 1 and self.parts.evaluations(start, stop, slots) > self.narrow:
            position = start + binomial.split(stop - start, slots)
            if slots == 1:
                position -= self.narrow // (self.block_size * (stop - start))
            self.parts.push(start, position, slots)
            clock = self.advance(clock, start, position)
            if slots > 1 and start // self.low < position // self.low:
                self.hold(position, clock, self.total - self.parts.left)
            start, slots = position, slots - 1
        end = self.total - self.parts.left
        if 1 < stop - start <= slots + 1 and end - clock > self.narrow:
            # There are slots for all blocks but the last one, which needs none.
            for i in range(self.low, stop - start - 1, self.low):
                self.hold(start + i, clock + self.block_size * i, end - self.block_size * i)
            clock = self.advance(clock, start, stop - 1)
        top = min(self.block_size * stop, self.length)
        _draw(self.taped, ((clock, top), (end, self.block_size * start)), self.narrow)

    def begin(self, part: Part, clock: int, source: int) -> int:
        """Draw the advance to a part, and the checkpoints that are not needed after it."""
        clock = self.advance(clock, source, part.start) if source < part.start else clock
        end = self.total - self.parts.left
        if end - clock > self.narrow or self.total == 0:
            self.hold(part.start, clock, end)
        if source == part.start and source in self.stores:
            self.stored.append(_level(self.block_size * source, self.block_size * source, end))
        return clock

    def advance(self, clock: int, start: int, stop: int) -> int:
        end = clock + self.block_size * (stop - start)
        _draw(
            self.advanced,
            ((clock, self.block_size * start), (end, self.block_size * stop)),
            self.total,
        )
        return end

    def hold(self, position: int, clock: int, end: int) -> None:
        self.held.append(_level(self.block_size * position, clock, end))


def _level(step: int, clock: int, end: int) -> Line:
    return (clock, step), (end, step)


def _draw(lines: list[Line], line: Line, longest: int) -> None:
    """Add a line, or lengthen the last line if this one continues it."""
    if lines and lines[-1][1] == line[0] and line[1][0] - lines[-1][0][0] <= longest:
        line = lines.pop()[0], line[1]
    lines.append(line)
