"""What a loop with a budget is meant to reach, beside what was measured. Nothing is asserted."""

from collections.abc import Iterator

import goals as scan_goals
from budget_measurements import GRADIENT
from contenders import OURS, PLAIN
from goals import Goal, time_ratio
from measurements import Measurement

MOST_OF_PLAIN = {
    ("lstm, n = 1000, batch 16, width 128", 0.05): 0.95,
    ("lstm, n = 1000, batch 16, width 128", 0.02): 1.0,
    ("lstm, n = 1000, batch 32, width 512", 0.05): 1.28,
    ("lstm, n = 1000, batch 32, width 512", 0.02): 1.6,
}
MOST_OF_BEST = 1.1

PUBLISHED = (
    "For comparison: 5% of the memory costs 1.33 times the time in recurrent networks on sequences "
    "of length 1000, by figures published in A. Gruslys et al., Memory-efficient backpropagation "
    "through time, 2016."
)


def goals(measurements: list[Measurement]) -> Iterator[Goal]:
    """Each run of ours against the goals that are stated for it."""
    for run in measurements:
        if run.contender == OURS:
            stated = _trade_off if run.quantity == GRADIENT else _choice
            yield from stated(run, measurements)


def time_ratios(run: Measurement, measurements: list[Measurement]) -> dict[str, float | None]:
    """The run's time over that of storing everything, and over that of the best plan."""
    return {
        "plain": time_ratio(run, measurements, PLAIN),
        "best": _time_over_best(run, measurements),
    }


def memory_ratio(run: Measurement, measurements: list[Measurement]) -> float | None:
    """Which share the run takes of the memory of storing everything."""
    less = scan_goals.memory_ratio(run, measurements)
    return None if less is None else 1 / less


def _time_over_best(run: Measurement, measurements: list[Measurement]) -> float | None:
    """Where choices are compared: over the time of the best plan within the budget."""
    if run.quantity == GRADIENT or run.contender == PLAIN:
        return None
    return run.median_ms / min(
        m.median_ms
        for m in measurements
        if (m.workload, m.quantity) == (run.workload, run.quantity) and m.contender != PLAIN
    )


def _trade_off(run: Measurement, measurements: list[Measurement]) -> Iterator[Goal]:
    everything = next(
        m.temp_bytes or 0
        for m in measurements
        if (m.workload, m.quantity, m.contender) == (run.workload, run.quantity, PLAIN)
    )
    for (workload, share), bound in MOST_OF_PLAIN.items():
        if (workload, int(share * everything)) == (run.workload, run.budget):
            what = f"gradient, {share:.0%} of the memory: time / {PLAIN}"
            yield Goal(run.workload, what, bound, time_ratio(run, measurements, PLAIN))


def _choice(run: Measurement, measurements: list[Measurement]) -> Iterator[Goal]:
    ratio = _time_over_best(run, measurements)
    yield Goal(run.workload, f"{run.quantity}: time / best plan", MOST_OF_BEST, ratio)
