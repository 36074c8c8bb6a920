"""Schedules as text and as pictures, against the actions that they stand for."""

import re
from collections.abc import Iterator

import matplotlib
import pytest
from hypothesis import given, settings
from matplotlib import pyplot
from test_schedule import plans

from jax_revolve import HostMemory, plan
from jax_revolve.schedule.actions import Advance, Discard, Free, Store, Tape, Write
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.show import MOST_BLOCKS, STYLES, as_text, drawn_lines
from jax_revolve.schedule.two_level import AnyPlan

matplotlib.use("Agg")

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


def sweeps(p: AnyPlan) -> Iterator[tuple[int, int, int, list[int], list[int]]]:
    """For each sweep: the evaluations up to its end, the first step that it runs, the first step
    that it tapes, and the positions that are in slots and in the storage then."""
    held, stored, clock, first = dict[int, int](), dict[int, int](), 0, p.length
    for action in p:
        match action:
            case Store(place, position) | Write(place, position):
                (held if isinstance(action, Store) else stored)[place] = position
            case Free(place) | Discard(place):
                del (held if isinstance(action, Free) else stored)[place]
            case Advance(start, stop) | Tape(start, stop):
                clock, first = clock + stop - start, min(first, start)
                target = start if isinstance(action, Tape) else stop
                if isinstance(action, Tape) or stop == p.length:
                    yield clock, first, target, [*held.values()], [*stored.values()]
                    first = p.length
            case _:
                pass


@given(plans.filter(lambda p: 0 < p.length <= 400))
@settings(max_examples=50)
def test_any_text_shows_the_actions(p: AnyPlan) -> None:
    """A line sums up about as many sweeps as any other."""
    lines = re.findall(r"^ *(\d+)  ([o@>#.]+)$", as_text(p), re.MULTILINE)
    columns, ends = len(lines[0][1]), p.scheduled_blocks - p.blocks
    rows, steps = len(lines) - ends, p.blocks * p.block_size
    lows = [p.block_size * (p.blocks * i // rows) for i in range(rows)] + [p.length] * ends
    end, ran = columns, [*sweeps(p)]
    for (evaluations, line), low in zip(lines, reversed(lows), strict=True):
        these = [s for s in ran if s[2] >= low]
        ran = ran[len(these) :]
        clock, _, _, held, stored = these[-1]
        taped, left = -(-low * columns // steps), min(s[1] for s in these) * columns // steps
        expected = list("." * left + ">" * (taped - left) + "#" * (end - taped))
        for mark, positions in ("o", held), ("@", stored):
            for column in {position * columns // steps for position in positions}:
                if column < taped or taped + 1 < end:
                    expected[column] = mark
        assert (int(evaluations), line) == (clock, "".join(expected))
        end = taped


@pytest.mark.parametrize("p", [plan(0), plan(1), plan(1000, 10), Plan(10**5, 3, 7)], ids=str)
def test_text_fits(p: Plan) -> None:
    for width in (20, 33, 79):
        text = as_text(p, width).splitlines()
        assert max(map(len, text)) <= width
        assert " ".join(text).startswith(str(p))
        assert len(text) <= 42


def test_text() -> None:
    assert plan(10, 3).show() == TEN_STEPS
    assert plan(1000, 10).show().endswith("\n1001 sweeps, summed up in 31 lines")
    for draw in (plan(MOST_BLOCKS + 1).show, plan(10**9).plot):
        with pytest.raises(ValueError, match=r"^blocks must be at most 100000 in a plan that is"):
            draw()


@given(plans.filter(lambda p: 0 < p.length <= 400))
@settings(max_examples=50)
def test_lines_show_the_actions(p: AnyPlan) -> None:
    """They lack no time and no step, and a checkpoint is at its place while a sweep needs it."""
    stored, held, advanced, taped = drawn_lines(p).values()
    clock, waiting = 0, p.length
    for (begin, low), (end, high) in sorted(advanced + taped):
        assert (begin, end - begin) == (clock, abs(high - low))
        clock = end
    for (_, high), (_, low) in taped:
        assert high == waiting
        waiting = low
    assert (clock, waiting) == (p.evaluations, 0)
    for evaluations, _, target, slots, kept in sweeps(p):
        before = evaluations - min(p.block_size, p.length - target)
        for lines, positions in (held, slots), (stored, kept):
            now = {step for (begin, step), (end, _) in lines if begin <= before < end}
            assert now == set(positions)


def test_axes() -> None:
    ax = plan(100, 5).plot()
    assert ax.figure in map(pyplot.figure, pyplot.get_fignums())
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert left <= 0 < 420 <= right < 435
    assert bottom <= 0 < 100 <= top < 105
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("evaluations", "step")
    assert ax.get_title().replace("\n", " ") == str(plan(100, 5))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [*STYLES][1:]
    p = plan(1000, 10, storage=HostMemory())
    assert "@ in storage (85 writes, 85 reads)" in p.show().splitlines()
    assert p.plot().get_legend().get_texts()[0].get_text() == "in storage (85 writes, 85 reads)"
    pyplot.close("all")
