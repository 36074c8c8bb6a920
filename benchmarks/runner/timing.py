"""Times of several functions that take turns, and the machine they were taken on."""

import os
import platform
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import jax
from tqdm import tqdm

ROOT = Path(__file__).parents[2]

MOST_ROUNDS = 200


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleave(
    functions: Sequence[Callable[[], Any]],
    budget: float,
    least_rounds: int,
    most_rounds: int = MOST_ROUNDS,
) -> list[list[float]]:
    """The seconds of each function in every round, as many rounds as the budget (s) allows.

    Each function runs once a round, so that what disturbs the machine disturbs all alike. The order
    changes from round to round, so that none always runs after the same other one, whose memory it
    would find in the caches. The functions are expected to have run once before.
    """
    times: list[list[float]] = [[] for _ in functions]
    order, shuffler = list(range(len(functions))), random.Random(0)

    def run_round() -> None:
        shuffler.shuffle(order)
        for i in order:
            times[i].append(seconds(functions[i]))

    rounds = min(max(round(budget / seconds(run_round)), least_rounds), most_rounds)
    for _ in tqdm(range(1, rounds), desc="Timing", unit="round", leave=False):
        run_round()
    return times


def spread(times: Sequence[float]) -> dict[str, Any]:
    """Of the times of one function, at least two."""
    first, _, last = quantiles(times, n=4, method="inclusive")
    return {
        "median_ms": 1e3 * median(times),
        "minimum_ms": 1e3 * min(times),
        "quartiles_ms": [1e3 * first, 1e3 * last],
        "repetitions": len(times),
    }


def describe_machine() -> dict[str, Any]:
    """What a file of results says about the machine, the sources and the circumstances."""
    return {
        "device": jax.devices()[0].device_kind,
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "equinox")},
        "cpu": _cpu(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        **sources(),
    }


VARYING = ("date", "load", "command", "commit")
"""Entries that differ between two runs on the same machine with the same sources."""


def sources() -> dict[str, str | None]:
    """The commit, and the hash of `jax_revolve/` in it; `None` where they are unknown, because this
    is no checkout or has changes."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(ROOT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    is_clean = git("status", "--porcelain", "jax_revolve") == ""
    tree = git("rev-parse", "HEAD:jax_revolve") if is_clean else None
    return {"commit": git("rev-parse", "HEAD"), "tree": tree}


def _cpu() -> str:
    """The model of the CPU."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", info.read_text() if info.exists() else "", re.M)
    return found[1] if found else platform.processor()


def device_slug() -> str:
    """The kind of device as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", jax.devices()[0].device_kind.lower()).strip("-")
