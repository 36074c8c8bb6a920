"""A profile from measured times.

The predicted time of a plan is linear in the constants of the profile but for `reused`, of which a
few values are tried. So the constants are a least squares problem with one more unknown for each
loop: what all of its plans share. Errors count relative to the time. What the times do not tell
stays as it was: a constant may not change without need. None is negative.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls
from scipy.stats import rankdata

from jax_revolve.profiles.profile import NUMBERS, Profile

KEPT = ("reused", "saved_byte", "host_transfer", "host_byte", "disk_transfer", "disk_byte")
"""What the times of gradients on the device tell nothing about."""

FITTED = tuple(name for name in NUMBERS if name not in KEPT)

RELUCTANCE = 0.01
"""How much a constant that is doubled counts, as a relative error of one time."""

REUSED = (0.0, 4e6, 8e6, 16e6, 24e6, 32e6, 64e6)
"""What `reused` may be."""

LEAST_OF_BYTES, LEAST = 0.01, 100.0
"""In nanoseconds: smaller constants, of bytes and of others, may change as much as these."""


class Sample(NamedTuple):
    """A gradient that was timed: its loop and its plan, in words; how its predicted time follows
    from a profile, without what all plans of the loop share; and the nanoseconds that it took."""

    loop: str
    plan: str
    predicted: Callable[[Profile], float]
    taken: float


def fitted(samples: Sequence[Sample], base: Profile) -> Profile:
    """The profile that predicts the times best, near a profile to begin with."""
    found = [_fitted(samples, replace(base, reused=reused)) for reused in REUSED]
    return min(found, key=lambda each: each[1])[0]


def _fitted(samples: Sequence[Sample], base: Profile) -> tuple[Profile, float]:
    """The profile, and how far its predictions are from the times."""
    loops = list(dict.fromkeys(sample.loop for sample in samples))
    nothing = replace(base, **dict.fromkeys(FITTED, 0.0))
    units = [replace(nothing, **{name: 1.0}) for name in FITTED]
    scales = np.array([_scale(base, name) for name in FITTED])
    taken = np.array([sample.taken for sample in samples])
    rows = np.array([[sample.predicted(unit) for unit in units] for sample in samples])
    shared = np.array([[float(sample.loop == loop) for loop in loops] for sample in samples])
    relative = np.hstack([rows * scales, shared * taken.mean()]) / taken[:, None]
    stay = np.hstack([np.eye(len(FITTED)), np.zeros((len(FITTED), len(loops)))]) * RELUCTANCE
    start = np.array([getattr(base, name) for name in FITTED]) / scales
    wanted = np.concatenate([np.ones(len(samples)), RELUCTANCE * start])
    found, apart = nnls(np.vstack([relative, stay]), wanted)
    constants = dict(zip(FITTED, found[: len(FITTED)] * scales, strict=True))
    rounded = {name: float(f"{value:.3g}") for name, value in constants.items()}
    return replace(base, **rounded), float(apart)


def _scale(base: Profile, name: str) -> float:
    is_of_bytes = name.endswith(("byte", "operation"))
    return max(getattr(base, name), LEAST_OF_BYTES if is_of_bytes else LEAST)


def predictions(samples: Sequence[Sample], profile: Profile) -> list[float]:
    """The predicted times, with what the plans of each loop share: the mean of what is left."""
    alone = [sample.predicted(profile) for sample in samples]
    left: dict[str, list[float]] = {}
    for sample, time in zip(samples, alone, strict=True):
        left.setdefault(sample.loop, []).append(sample.taken - time)
    return [
        time + float(np.mean(left[sample.loop]))
        for sample, time in zip(samples, alone, strict=True)
    ]


def rank_correlation(samples: Sequence[Sample], profile: Profile) -> float:
    """How well the profile puts the plans of a loop in order: Spearman's rank correlation, as the
    mean over the loops."""
    found: list[float] = []
    for loop in dict.fromkeys(sample.loop for sample in samples):
        some = [sample for sample in samples if sample.loop == loop]
        predicted, taken = [s.predicted(profile) for s in some], [s.taken for s in some]
        if len({*predicted}) > 1:
            found.append(float(np.corrcoef(rankdata(predicted), rankdata(taken))[0, 1]))
    return float(np.mean(found)) if found else 1.0
