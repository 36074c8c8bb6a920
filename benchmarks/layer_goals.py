"""What chains of layers are meant to reach, beside what was measured. Nothing is asserted."""

from collections.abc import Iterator

import goals as scan_goals
from contenders import OURS
from goals import Goal, time_ratio
from layer_measurements import GRADIENT, PLAIN, REMAT
from measurements import Measurement

MOST_OF_PLAIN = 1.4
SHARE = 0.25


def goals(measurements: list[Measurement]) -> Iterator[Goal]:
    """At most 40% more time than the plain model, within a quarter of its memory."""
    for run in measurements:
        everything = _everything(run, measurements)
        if run.contender == OURS and run.budget == int(SHARE * everything):
            what = f"{GRADIENT}, {SHARE:.0%} of the memory: time / {PLAIN}"
            yield Goal(run.workload, what, MOST_OF_PLAIN, time_ratio(run, measurements, PLAIN))
            share = (run.temp_bytes or 0) / everything if everything else None
            yield Goal(run.workload, f"{GRADIENT}: memory / {PLAIN}", SHARE, share)


def time_ratios(run: Measurement, measurements: list[Measurement]) -> dict[str, float | None]:
    """The run's time over that of the plain model, and with `jax.checkpoint` on every block."""
    return {
        "plain": time_ratio(run, measurements, PLAIN),
        "remat": time_ratio(run, measurements, REMAT),
    }


def memory_ratio(run: Measurement, measurements: list[Measurement]) -> float | None:
    """Which share the run takes of the memory of the plain model."""
    less = scan_goals.memory_ratio(run, measurements, PLAIN)
    return None if less is None else 1 / less


def _everything(run: Measurement, measurements: list[Measurement]) -> int:
    return next(
        m.temp_bytes or 0
        for m in measurements
        if m.workload == run.workload and m.contender == PLAIN
    )
