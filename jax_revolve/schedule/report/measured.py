"""Measured times and bytes: of one plan, and how a report shows several."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

from jax_revolve.schedule.arguments import readable
from jax_revolve.schedule.two_level import AnyPlan

FEWEST_RUNS = 2
"""The runs that a measurement needs: with fewer there are no quartiles."""


class Measurement(NamedTuple):
    """The measured time and bytes of a loop's gradient with one plan.

    - `ms`: the median of the times of its runs, in milliseconds.
    - `quartiles`: the lower and the upper quartile of the times, in milliseconds.
    - `runs`: the number of runs that were timed. The first run was not.
    - `temporaries`: the bytes of the compiled program's temporary buffers: all that it holds except
        its operands and its results. `None` if the backend does not report it.
    - `peak`: the most bytes that the device's allocator held until the end of the first run:
        operands, results and other arrays count. `None` if the device reports none, and if the
        process had held more before.
    """

    ms: float
    quartiles: tuple[float, float]
    runs: int
    temporaries: int | None
    peak: int | None

    @classmethod
    def of(
        cls, seconds: Sequence[float], temporaries: int | None, peak: int | None
    ) -> "Measurement":
        """The measurement from the times of at least `FEWEST_RUNS` runs."""
        ms = [1000 * time for time in seconds]
        lower, _, upper = quantiles(ms, n=4, method="inclusive")
        return cls(median(ms), (lower, upper), len(ms), temporaries, peak)


def remarks(
    measured: Mapping[AnyPlan, Measurement],
    unmeasured: Sequence[AnyPlan],
    too_large: Sequence[AnyPlan],
    is_interrupted: bool,
) -> Iterator[str]:
    """What a reader of the table has to know."""
    if not measured:
        return
    runs = min(its.runs for its in measured.values())
    yield "measured: the temporaries of the compiled gradient"
    yield f"ms: the median of at least {runs} runs"
    if _has_peaks(measured):
        yield "peak: the most bytes that the device has held, operands and results too"
    of_all = f"{len(measured)} of {len(measured) + len(unmeasured)} plans are measured"
    if is_interrupted:
        yield f"Interrupted: {of_all}."
    elif unmeasured:
        yield f"{of_all}: more seconds are needed for the others"
    if too_large:
        plans = ", ".join(f"{p.checkpoints} x {p.block_size}" for p in too_large)
        yield f"The device has too little memory for (checkpoints x block size): {plans}."


def columns(measured: Mapping[AnyPlan, Measurement]) -> list[str]:
    """The titles of the columns of a table, if anything is measured."""
    if not measured:
        return []
    return ["measured", "peak", "ms"] if _has_peaks(measured) else ["measured", "ms"]


def cells(measured: Mapping[AnyPlan, Measurement], plan: AnyPlan) -> list[str]:
    """The cells of a plan in these columns."""
    if plan not in measured:
        return [""] * len(columns(measured))
    its = measured[plan]
    sizes = [its.temporaries, its.peak] if _has_peaks(measured) else [its.temporaries]
    return [*("" if size is None else readable(size) for size in sizes), f"{its.ms:.3g}"]


def _has_peaks(measured: Mapping[AnyPlan, Measurement]) -> bool:
    return any(its.peak is not None for its in measured.values())


def draw(ax: Any, measured: Mapping[AnyPlan, Measurement], chosen: AnyPlan) -> Any:
    """A panel in the upper right corner of the axes, above the curve, which falls: a line for each
    measured plan, the quickest on top, with its time and the quartiles."""
    panel = ax.inset_axes((0.5, 0.37, 0.48, 0.53))
    plans = sorted(measured, key=lambda plan: measured[plan].ms)
    for i, plan in enumerate(plans):
        its = measured[plan]
        color, marker, size = ("#D55E00", "*", 12) if plan == chosen else ("#0072B2", "o", 5)
        panel.plot(its.quartiles, [i, i], color=color, linewidth=3, alpha=0.4)
        panel.plot([its.ms], [i], color=color, marker=marker, markersize=size)
    panel.set_yticks(range(len(plans)), [f"{p.checkpoints} x {p.block_size}" for p in plans])
    panel.set_ylim(len(plans) - 0.5, -0.5)
    panel.set_xlim(0, 1.1 * max(its.quartiles[1] for its in measured.values()))
    panel.set_xlabel("measured milliseconds", fontsize="small", labelpad=1)
    panel.set_title("checkpoints x block size", fontsize="small", pad=3)
    panel.tick_params(labelsize="small", pad=2)
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    return panel
