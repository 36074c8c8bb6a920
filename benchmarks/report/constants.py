"""The constants of a profile, fitted to the times of plans (`benchmarks/plans.py`).

The time of a plan is taken to be the sum of its terms, times the constants, and of a time that all
plans of its workload share. Errors are relative to the times. A constant of which the times tell
little stays near the value that it had, and none is negative.
"""

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.plans import TERMS
from benchmarks.report.results import load
from jax_revolve.profiles.profile import CPU, FOLDER, Profile

LEAST = 0.01
"""A constant of none may become so large, in nanoseconds, as easily as another may double."""

STAYING = 0.1
"""How much a constant that is changed by all of its value counts, in relative errors of a time."""


def fitted(runs: list[Any], before: Profile) -> Profile:
    workloads = list(dict.fromkeys(run["workload"] for run in runs))
    old = np.array([max(getattr(before, name), LEAST) for name in TERMS])
    rows, times = list[Any](), list[float]()
    for run in runs:
        shared = np.zeros(len(workloads))
        shared[workloads.index(run["workload"])] = run["ran"] != "value"
        terms = np.array([run["terms"].get(name, 0.0) for name in TERMS]) * old / 1e6
        rows.append(np.concatenate([terms, shared]) / run["ms"])
        times.append(1.0)
    stay = np.hstack([np.eye(len(TERMS)), np.zeros((len(TERMS), len(workloads)))])
    left = np.vstack([*rows, STAYING * stay])
    right = np.array([*times, *[STAYING] * len(TERMS)])
    constants = nnls(left, right)[0][: len(TERMS)] * old
    found = {name: float(f"{x:.2g}") for name, x in zip(TERMS, constants, strict=True)}
    return replace(before, **found)


def write() -> None:
    results = load("plans-cpu")
    runs = [run for run in results.runs if "terms" in run.fields]
    profile = replace(fitted(runs, CPU), origin=f"measured {results.where}")
    path = FOLDER / "cpu.json"
    path.write_text(json.dumps(asdict(profile), indent=2) + "\n")
    print(path.read_text())
