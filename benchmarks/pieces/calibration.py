"""The profile of the device, with predicted and measured times."""

from collections.abc import Iterator
from dataclasses import asdict
from math import isnan

from benchmarks.runner.comparison import Record
from benchmarks.runner.pieces import Setting
from benchmarks.runner.timing import device_slug
from jax_revolve.calibration.calibrate import calibrate
from jax_revolve.calibration.fit import predictions, rank_correlation
from jax_revolve.profiles.profile import write

CALIBRATING = (150.0, 60.0, 4.0)
"""Seconds for each size. What counts is how many plans are compiled by then."""


def measure_calibration(setting: Setting) -> Iterator[Record]:
    """Write the profile, then tell measured and predicted times."""
    found = calibrate(setting.of(CALIBRATING))
    write(found.profile, setting.folder / f"profile-{device_slug()}.json")
    samples = found.samples
    yield {
        "kind": "profile",
        **asdict(found.profile),
        "rank_correlation": _known(rank_correlation(samples, found.profile)),
        "rank_correlation_before": _known(rank_correlation(samples, found.before)),
    }
    predicted = (predictions(samples, profile) for profile in (found.profile, found.before))
    for sample, now, before in zip(samples, *predicted, strict=True):
        yield {
            "kind": "sample",
            "loop": sample.loop,
            "plan": sample.plan,
            "measured_ms": sample.taken / 1e6,
            "predicted_ms": now / 1e6,
            "predicted_before_ms": before / 1e6,
        }


def _known(value: float) -> float | None:
    """There is no correlation if there was time for one plan only."""
    return None if isnan(value) else value
