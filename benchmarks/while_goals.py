"""What `bounded_while_loop` is meant to reach, beside what was measured. Nothing is asserted."""

from collections.abc import Iterator
from functools import partial

import goals as scan_goals
from contenders import EQUINOX, OURS
from goals import Goal, time_ratio
from measurements import Measurement
from while_contenders import BOUNDED, MASKED, PLAIN
from while_measurements import GRADIENT
from while_workloads import BOUNDS, VMAP

MOST_OF_EQUINOX = 0.6
MOST_OF_JVP = 1.1
MOST_OF_SHORT_VALUE = 1.05
MOST_OF_LEAST_BOUND = 1.1

memory_ratio = partial(scan_goals.memory_ratio, rival=EQUINOX)
"""How many times less memory than Equinox at as many checkpoints the run takes."""


def goals(measurements: list[Measurement]) -> Iterator[Goal]:
    """Each run of ours against the goals that are stated for it."""
    for run in measurements:
        if run.contender == OURS:
            stated = _short_loop if run.family == BOUNDS else _loop
            yield from stated(run, measurements)


def time_ratios(run: Measurement, measurements: list[Measurement]) -> dict[str, float | None]:
    """The run's time over those of its rivals: plain, Equinox at equal s, Equinox's other loop, a
    masked scan; and, if the bound varies, over the time with the least bound."""
    equinox = run.checkpoints is not None and run.contender != EQUINOX
    return {
        "plain": time_ratio(run, measurements, PLAIN),
        "equinox": time_ratio(run, measurements, EQUINOX) if equinox else None,
        "bounded": time_ratio(run, measurements, BOUNDED),
        "masked": time_ratio(run, measurements, MASKED),
        "least bound": _time_over_least_bound(run, measurements),
    }


def _time_over_least_bound(run: Measurement, measurements: list[Measurement]) -> float | None:
    if run.contender != OURS or run.family != BOUNDS:
        return None
    return run.median_ms / _with_least_bound(run, measurements).median_ms


def _with_least_bound(run: Measurement, measurements: list[Measurement]) -> Measurement:
    same = (run.workload, run.quantity, OURS)
    runs = [m for m in measurements if (m.workload, m.quantity, m.contender) == same]
    return min(runs, key=lambda m: m.max_steps or 0)


def _loop(run: Measurement, measurements: list[Measurement]) -> Iterator[Goal]:
    """Value and second order are only reported, and so are many examples."""
    if run.quantity == "jvp":
        ratio = time_ratio(run, measurements, PLAIN)
        yield Goal(run.workload, f"jvp: time / {PLAIN}", MOST_OF_JVP, ratio)
    if run.quantity == GRADIENT and run.family != VMAP:
        what = f"gradient, s = {run.checkpoints}: time / {EQUINOX}"
        yield Goal(run.workload, what, MOST_OF_EQUINOX, time_ratio(run, measurements, EQUINOX))


def _short_loop(run: Measurement, measurements: list[Measurement]) -> Iterator[Goal]:
    """A loop of a few steps under one of several bounds. The default number of checkpoints grows
    with the bound; that gradient is only reported."""
    if run.quantity == "value":
        what, ratio = f"value, {run.detail}: time / {PLAIN}", time_ratio(run, measurements, PLAIN)
        yield Goal(run.workload, what, MOST_OF_SHORT_VALUE, ratio)
    if run.quantity == GRADIENT and run != _with_least_bound(run, measurements):
        ratio = _time_over_least_bound(run, measurements)
        what = f"gradient, s = {run.checkpoints}, {run.detail}: time / least bound"
        yield Goal(run.workload, what, MOST_OF_LEAST_BOUND, ratio)
