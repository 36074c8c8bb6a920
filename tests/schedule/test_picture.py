"""Schedules as pictures, against the actions that they stand for."""

from collections.abc import Iterator

import matplotlib
import pytest
from hypothesis import given, settings
from matplotlib import pyplot
from support.machine import plans

from jax_revolve import HostMemory, plan
from jax_revolve.schedule.actions import Advance, Discard, Free, Store, Tape, Write
from jax_revolve.schedule.picture import MOST_BLOCKS, STYLES, drawn_lines
from jax_revolve.schedule.plan import Plan

matplotlib.use("Agg")


def sweeps(p: Plan) -> Iterator[tuple[int, int, int, list[int], list[int]]]:
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


def test_long_plans_are_refused() -> None:
    for p in (plan(MOST_BLOCKS + 1), plan(10**9)):
        with pytest.raises(ValueError, match=r"^blocks must be at most 100000 in a plan that is"):
            p.plot()


@given(plans.filter(lambda p: 0 < p.length <= 400))
@settings(max_examples=50)
def test_lines_show_the_actions(p: Plan) -> None:
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
        is_last = target == p.stride * (p.blocks - 1)
        before = evaluations - (p.length - target if is_last else p.stride)
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
    assert p.plot().get_legend().get_texts()[0].get_text() == "in storage (85 writes, 85 reads)"
    pyplot.close("all")
