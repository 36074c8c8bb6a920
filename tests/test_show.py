"""Schedules as text and as pictures, against the actions that they stand for."""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot

from jax_revolve.schedule.actions import Advance, Free, Load, Store, Tape
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import plan
from jax_revolve.schedule.report.show import Drawing, as_text

matplotlib.use("Agg")

PLANS = [
    *(plan(10, 3), plan(28, 4), plan(30, 1), plan(10, "all"), plan(1), plan(2), plan(100, 5)),
    *(plan(1000, 10), plan(200, 199), Plan(70, 3, 4), Plan(1000, 20, 25), Plan(10, 1, 10)),
]
LONG = [
    *(plan(10**4, 20), plan(10**4, "all"), plan(10**4, 5000), plan(10**5, 2)),
    *(plan(10**6), plan(10**6, 50), plan(10**6, 1), plan(10**6, "all"), Plan(10**6, 3, 7)),
]
plans = st.builds(Plan, st.integers(1, 400), st.integers(1, 30), st.integers(1, 5))

LABELS = ["checkpoint held", "advanced", "taped, transposed"]

Line = tuple[tuple[float, float], tuple[float, float]]

TEN_STEPS = """\
10 steps, 3 checkpoints: 28 evaluations (1.80 extra forward passes, no step
advanced more than 3 times)
evaluations  |0  |1  |2  |3  |4  |5  |6  |7  |8  |9 steps
         10  o>>>>>>>>>>>>>>>o>>>>>>>>>>>o>>>>>>>>>>>
         13  o...............o...........o>>>>>>>####
         15  o...............o...........o>>>####
         16  o...............o...........o###
         19  o...............o>>>o>>>####
         20  o...............o...o###
         21  o...............o###
         25  o>>>o>>>o>>>####
         26  o...o...o###
         27  o...o###
         28  o###
o checkpoint held   > advanced   # taped, transposed   . waiting"""


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


class Sweep(NamedTuple):
    """What the actions up to one tape do, in steps: the steps taped, the first step advanced or
    taped, the checkpoints held for the tape, and the evaluations before and after it."""

    taped: tuple[int, int]
    first: int
    held: list[int]
    before: int
    after: int


class Replay:
    """Runs the actions of a plan."""

    def __init__(self, p: Plan) -> None:
        self.sweeps: list[Sweep] = []
        self.held: set[tuple[tuple[int, int], tuple[int, int]]] = set()
        slots: dict[int, tuple[int, int]] = {}
        clock = first = 0

        def sweep(start: int, stop: int) -> None:
            held = [position for _, position in slots.values()]
            end = clock + stop - start
            self.sweeps.append(Sweep((start, stop), first, held, clock, end))

        for action in p:
            match action:
                case Store(slot, position):
                    slots[slot] = clock, position
                case Load(_, position):
                    if not self.sweeps:  # the end of the loop, which is not taped
                        sweep(p.length, p.length)
                    first = position
                case Advance(start, stop):
                    clock += stop - start
                case Tape(start, stop):
                    if not self.sweeps and p.block_size == 1:  # a loop of one step
                        sweep(p.length, p.length)
                    sweep(start, stop)
                    clock += stop - start
                case Free(slot):
                    stored, position = slots.pop(slot)
                    self.held.add(((stored, position), (clock, position)))


def row(p: Plan, sweeps: list[Sweep], columns: int) -> str:
    """What the line for some sweeps has to look like, in a chart of so many columns."""
    steps = p.blocks * p.block_size

    def column(step: int) -> int:
        return step * columns // steps

    low, high = sweeps[-1].taped[0], min(sweeps[0].taped[0] + p.block_size, steps)
    taped, end = -(-low * columns // steps), -(-high * columns // steps)
    advanced = column(min(sweep.first for sweep in sweeps))
    line = list("." * advanced + ">" * (taped - advanced) + "#" * (end - taped))
    for position in {h for sweep in sweeps for h in sweep.held if h <= low}:
        if column(position) < taped or end - taped > 1:
            line[column(position)] = "o"
    return "".join(line)


def lines(text: str) -> list[tuple[int, str]]:
    """The lines of the chart: the evaluations on the left, and the rest."""
    found = re.findall(r"^ *(\d+)  ([o>#.]+)$", text, re.MULTILINE)
    return [(int(evaluations), row) for evaluations, row in found]


def test_text_of_ten_steps() -> None:
    assert as_text(plan(10, 3)) == TEN_STEPS
    assert plan(10, 3).show() == TEN_STEPS


def check_text(p: Plan, width: int) -> None:
    """Sums up the sweeps as the text does: about as many in every line."""
    chart, sweeps = lines(as_text(p, width)), Replay(p).sweeps
    ends = p.scheduled_blocks - p.blocks
    count, columns = len(chart) - ends, len(chart[0][1])
    for i, (evaluations, line) in zip(reversed(range(count + ends)), chart, strict=True):
        low, high = (p.block_size * (p.blocks * j // count) for j in (i, i + 1))
        these = [s for s in sweeps if low <= s.taped[0] < high]
        assert evaluations == these[-1].after
        assert line == row(p, these, columns)


@given(plans)
@settings(max_examples=50)
def test_any_text_shows_the_actions(p: Plan) -> None:
    check_text(p, 79)


@pytest.mark.parametrize("p", [*PLANS, *LONG, plan(0), plan(10**9, 30)], ids=str)
def test_text_fits(p: Plan) -> None:
    for width in (20, 33, 79):
        text = as_text(p, width).splitlines()
        assert max(map(len, text)) <= width
        assert " ".join(text).startswith(str(p))
    assert len(as_text(p).splitlines()) <= 37
    if p.length:
        clocks, chart = zip(*lines(as_text(p)), strict=True)
        assert list(clocks) == sorted(set(clocks))
        assert clocks[-1] == p.evaluations
        after_the_end = [len(line) for line in chart][p.scheduled_blocks - p.blocks :]
        assert after_the_end == sorted(set(after_the_end), reverse=True)


def test_text_says_what_it_leaves_out() -> None:
    assert as_text(plan(1000, 10)).endswith("\n1001 sweeps, summed up in 31 lines")
    assert "summed up" not in as_text(plan(30, 3))
    assert as_text(plan(0)) == "\n".join(as_text(plan(0)).splitlines()[:2])


@pytest.mark.parametrize(("width", "error"), [(19, ValueError), (-1, ValueError), (9.5, TypeError)])
def test_bad_width(width: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"width must be an int >= 20, but is {width}"):
        plan(10, 3).show(width)


def drawn(ax: Any) -> list[list[Line]]:
    """The lines of a picture: checkpoints held, advances, and what is taped."""
    assert [c.get_label() for c in ax.collections] == LABELS
    return [[((a, b), (c, d)) for (a, b), (c, d) in x.get_segments()] for x in ax.collections]


def joined(lines: Sequence[Line]) -> list[Line]:
    """Those that go on where the last one ends are one."""
    whole: list[Line] = []
    for begin, end in lines:
        if whole and whole[-1][1] == begin:
            begin = whole.pop()[0]
        whole.append((begin, end))
    return whole


def check_lines(p: Plan, held: Any, advanced: Any, taped: Any) -> None:
    replay = Replay(p)
    starts = [(s.before - (s.taped[0] - s.first), s.first) for s in replay.sweeps]
    ends = [(s.before, s.taped[0]) for s in replay.sweeps]
    tapes = [((s.before, s.taped[1]), (s.after, s.taped[0])) for s in replay.sweeps]
    assert advanced == [(a, b) for a, b in zip(starts, ends, strict=True) if a != b]
    assert joined(taped) == joined(tapes)
    assert len(held) == len(replay.held)
    assert set(held) == replay.held


@given(plans.filter(lambda p: p.evaluations < 4000 * p.block_size))
@settings(max_examples=50)
def test_lines_show_the_actions(p: Plan) -> None:
    drawing = Drawing(p)
    check_lines(p, drawing.held, drawing.advanced, drawing.taped)


@pytest.mark.parametrize("p", LONG, ids=str)
def test_pictures_of_long_loops(p: Plan) -> None:
    """They are made of few lines, and lack no time and no step."""
    drawing = Drawing(p)
    assert len(drawing.held) + len(drawing.advanced) + len(drawing.taped) < 10**4
    clock, waiting = 0, p.length
    for (x0, _), (x1, _) in sorted(drawing.advanced + drawing.taped):
        assert x0 == clock
        clock = x1
    for (_, y0), (_, y1) in drawing.taped:
        assert y0 == waiting
        waiting = y1
    assert (clock, waiting) == (p.evaluations, 0)


def test_axes() -> None:
    ax = plan(100, 5).plot()
    assert ax.figure in map(pyplot.figure, pyplot.get_fignums())
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert left <= 0 < 420 <= right < 435
    assert bottom <= 0 < 100 <= top < 105
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("evaluations", "step")
    assert ax.get_title().replace("\n", " ") == str(plan(100, 5))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == LABELS


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = r'^plot\(\) needs matplotlib: pip install "jax_revolve\[plot\]"$'
    with pytest.raises(ModuleNotFoundError, match=message):
        plan(10, 3).plot()
