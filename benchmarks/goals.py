"""What jax_revolve is meant to reach, beside what was measured. Nothing is asserted."""

from collections.abc import Iterator
from dataclasses import dataclass

from contenders import EQUINOX, NESTED, OURS, PLAIN
from measurements import Measurement

MOST_OF_VALUE = 1.02
MOST_OF_JVP = 1.05
MOST_OF_PLAIN = {("stencil", 1000, 63): 1.2}
LEAST_MEMORY_SAVED = {("stencil", 1000, 63): 25}
MOST_OF_EQUINOX = {(1000, 63): 0.65, (1000, 30): 0.45, (1000, 10): 0.45, (100_000, 63): 0.3}
MOST_OF_NESTED = 1.0


@dataclass(frozen=True)
class Goal:
    """A ratio to be at most (or at least) `bound`; `measured` is `None` if there is no rival."""

    workload: str
    what: str
    bound: float
    measured: float | None
    at_least: bool = False

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "no rival"
        met = self.measured >= self.bound if self.at_least else self.measured <= self.bound
        return "met" if met else "missed"


def goals(measurements: list[Measurement]) -> Iterator[Goal]:
    """Each run of ours against the goals that are stated for it."""
    for run in measurements:
        if run.contender == OURS:
            stated = _gradient if run.quantity == "gradient" else _forward
            yield from stated(run, measurements)


def time_ratio(run: Measurement, measurements: list[Measurement], rival: str) -> float | None:
    """The run's median time over that of the rival, or `None` if there is no such rival."""
    times = [m.median_ms for m in _rivals(run, measurements, rival)]
    return run.median_ms / min(times) if times else None


def memory_ratio(run: Measurement, measurements: list[Measurement]) -> float | None:
    """How many times less memory than `lax.scan` the run takes."""
    for plain in _rivals(run, measurements, PLAIN):
        if plain.temp_bytes is not None and run.temp_bytes:
            return plain.temp_bytes / run.temp_bytes
    return None


def _rivals(run: Measurement, measurements: list[Measurement], rival: str) -> list[Measurement]:
    """The rival's runs for the same result and, if it has any, with the same checkpoints."""
    return [
        m
        for m in measurements
        if (m.workload, m.quantity, m.contender) == (run.workload, run.quantity, rival)
        and m.checkpoints in (None, run.checkpoints)
    ]


def _forward(run: Measurement, measurements: list[Measurement]) -> Iterator[Goal]:
    bound = MOST_OF_VALUE if run.quantity == "value" else MOST_OF_JVP
    ratio = time_ratio(run, measurements, PLAIN)
    yield Goal(run.workload, f"{run.quantity}: time / {PLAIN}", bound, ratio)


def _gradient(run: Measurement, measurements: list[Measurement]) -> Iterator[Goal]:
    def goal(what: str, bound: float, measured: float | None, at_least: bool = False) -> Goal:
        return Goal(run.workload, f"gradient, s = {s}: {what}", bound, measured, at_least)

    s, case = run.checkpoints or 0, (run.length, run.checkpoints or 0)
    if bound := MOST_OF_PLAIN.get((run.family, *case)):
        yield goal(f"time / {PLAIN}", bound, time_ratio(run, measurements, PLAIN))
    if bound := LEAST_MEMORY_SAVED.get((run.family, *case)):
        yield goal(f"{PLAIN} memory / ours", bound, memory_ratio(run, measurements), True)
    if bound := MOST_OF_EQUINOX.get(case):
        yield goal(f"time / {EQUINOX}", bound, time_ratio(run, measurements, EQUINOX))
    yield goal(f"time / {NESTED}", MOST_OF_NESTED, time_ratio(run, measurements, NESTED))
