"""What jax_revolve is meant to reach, beside what was measured. Nothing is asserted."""

from collections.abc import Iterator
from dataclasses import dataclass

from contenders import EQUINOX, NESTED, OURS, PLAIN
from measurements import Measurement
from nesting import TOLERANCE

MOST_OF_VALUE = 1.02
MOST_OF_JVP = 1.05
MOST_OF_PLAIN = {("stencil", 1000, 63): 1.2}
LEAST_MEMORY_SAVED = {("stencil", 1000, 63): 25}
MOST_OF_EQUINOX = {(1000, 63): 0.65, (1000, 30): 0.45, (1000, 10): 0.45, (100_000, 63): 0.3}
MOST_OF_NESTED = 1.0


@dataclass(frozen=True)
class Goal:
    """A ratio to be at most (or at least) `bound`. It binds only against a `comparable` rival;
    `measured` is `None` if there is none at all."""

    workload: str
    what: str
    bound: float
    measured: float | None
    at_least: bool = False
    comparable: bool = True

    @property
    def verdict(self) -> str:
        if self.measured is None or not self.comparable:
            return "no rival of this memory"
        met = self.measured >= self.bound if self.at_least else self.measured <= self.bound
        return "met" if met else "missed"


def goals(measurements: list[Measurement]) -> Iterator[Goal]:
    """Each run of ours against the goals that are stated for it."""
    for run in measurements:
        if run.contender == OURS and run.quantity in ("value", "jvp"):
            yield from _forward(run, measurements)
        elif run.contender == OURS and run.quantity == "gradient":
            yield from _gradient(run, measurements)


def time_ratio(run: Measurement, measurements: list[Measurement], rival: str) -> float | None:
    """The run's median time over that of the rival, or `None` if there is no such rival."""
    times = [m.median_ms for m in _rivals(run, measurements, rival)]
    return run.median_ms / min(times) if times else None


def time_ratios(run: Measurement, measurements: list[Measurement]) -> dict[str, float | None]:
    """The run's time over those of its rivals: plain, Equinox at equal s, nested."""
    equinox = run.checkpoints is not None and run.contender != EQUINOX
    return {
        "plain": time_ratio(run, measurements, PLAIN),
        "equinox": time_ratio(run, measurements, EQUINOX) if equinox else None,
        "nested": time_ratio(run, measurements, NESTED) if run.contender == OURS else None,
    }


def memory_ratio(
    run: Measurement, measurements: list[Measurement], rival: str = PLAIN
) -> float | None:
    """How many times less memory than the rival the run takes."""
    for other in _rivals(run, measurements, rival):
        if other.temp_bytes is not None and run.temp_bytes:
            return other.temp_bytes / run.temp_bytes
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
    def goal(what: str, bound: float, measured: float | None, **options: bool) -> Goal:
        return Goal(run.workload, f"gradient, s = {s}: {what}", bound, measured, **options)

    s, case = run.checkpoints or 0, (run.length, run.checkpoints or 0)
    if bound := MOST_OF_PLAIN.get((run.family, *case)):
        yield goal(f"time / {PLAIN}", bound, time_ratio(run, measurements, PLAIN))
    if bound := LEAST_MEMORY_SAVED.get((run.family, *case)):
        saved = memory_ratio(run, measurements)
        yield goal(f"memory of {PLAIN} / ours", bound, saved, at_least=True)
    if bound := MOST_OF_EQUINOX.get(case):
        yield goal(f"time / {EQUINOX}", bound, time_ratio(run, measurements, EQUINOX))
    nested, fits = time_ratio(run, measurements, NESTED), _nested_fits(run, measurements)
    yield goal(f"time / {NESTED}", MOST_OF_NESTED, nested, comparable=fits)


def _nested_fits(run: Measurement, measurements: list[Measurement]) -> bool:
    """Whether the nested scans beside the run take no more memory than it; if not, they are the
    nearest that there are."""
    sizes = [m.temp_bytes for m in _rivals(run, measurements, NESTED)]
    most = TOLERANCE * (run.temp_bytes or 0)
    return all(size is not None and size <= most for size in sizes)
