"""Times of several functions that take turns."""

import random
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Any

from tqdm import tqdm

MOST_ROUNDS = 200
LEAST_ROUNDS = 7
"""Medians of fewer are noise from the second digit on."""


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleave(
    functions: Sequence[Callable[[], Any]],
    budget: float,
    least_rounds: int = LEAST_ROUNDS,
    most_rounds: int = MOST_ROUNDS,
    quick: bool = False,
) -> list[list[float]]:
    """The seconds of each function in every round, as many rounds as the budget (s) allows, or two
    if it is `quick`.

    Each function runs once a round, so that what disturbs the machine disturbs all alike. The order
    changes from round to round, so that none always runs after the same other one, whose memory it
    would find in the caches. Before that, all run once.
    """
    budget, least_rounds = (0.0, 2) if quick else (budget, least_rounds)
    times: list[list[float]] = [[] for _ in functions]
    order, shuffler = list(range(len(functions))), random.Random(0)

    def run_round() -> None:
        shuffler.shuffle(order)
        for i in order:
            times[i].append(seconds(functions[i]))

    for function in functions:
        function()
    rounds = min(max(round(budget / seconds(run_round)), least_rounds), most_rounds)
    for _ in tqdm(range(1, rounds), desc="Timing", unit="round", leave=False):
        run_round()
    return times


def spread(times: Sequence[float], first: Sequence[float]) -> dict[str, Any]:
    """Of the times of one function, at least two. The ratio is the median of the ratios to the
    times of the first function, round by round: what slows a whole round cancels out."""
    quarter, _, three_quarters = quantiles(times, n=4, method="inclusive")
    return {
        "median_ms": 1e3 * median(times),
        "minimum_ms": 1e3 * min(times),
        "quartiles_ms": [1e3 * quarter, 1e3 * three_quarters],
        "repetitions": len(times),
        "ratio": median(own / other for own, other in zip(times, first, strict=True)),
    }
