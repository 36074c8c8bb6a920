"""Numbers in the text of the pages that come from results, each by a name."""

from collections.abc import Callable

from benchmarks.contenders import names
from benchmarks.report.results import Run, find, load, quickest
from benchmarks.report.table import megabytes


def _above_budget(share: float) -> str:
    """By how much the temporaries exceed `memory=`."""
    runs = load("budget-cpu").runs
    budget = int(share * quickest(runs, contender=names.LAX_SCAN)["temp_bytes"])
    run = quickest(runs, contender=names.JAX_REVOLVE, budget=budget)
    return f"{(run['temp_bytes'] - budget) / 1e6:.1f} MB"


def _of_stack(share: float) -> Run:
    """A transformer stack with a share of the memory of the plain one as its budget."""
    runs = [r for r in load("layers-cpu").runs if r["workload"].startswith("transformer stack")]
    plain = quickest(runs, contender=names.PLAIN_LAYERS)["temp_bytes"]
    near = [r for r in runs if r["budget"] and abs(r["budget"] / plain - share) < 0.01]
    return quickest(near)


def _far_bound() -> str:
    """The time with a bound of 2**20 and default checkpoints, over the time with a bound of 16."""
    runs = find(load("while-cpu").runs, family="bounds", contender=names.JAX_REVOLVE)
    runs = [run for run in runs if "default" in run["quantity"]]
    near, far = (quickest(runs, max_steps=bound) for bound in (16, 2**20))
    return f"{far['median_ms'] / near['median_ms']:.1f}"


def _plain_seconds(workload: str) -> str:
    runs = [r for r in load("layers-cpu").runs if r["workload"].startswith(workload)]
    return f"{quickest(runs, contender=names.PLAIN_LAYERS)['median_ms'] / 1e3:.0f} s"


FIGURES: dict[str, Callable[[], str]] = {
    "above-budget": lambda: _above_budget(0.02),
    "stack-half": lambda: megabytes(_of_stack(0.5), 0),
    "stack-half-time": lambda: f"{_of_stack(0.5)['median_ms'] / 1e3:.1f} s",
    "stack-quarter": lambda: megabytes(_of_stack(0.25), 0),
    "stack-quarter-time": lambda: f"{_of_stack(0.25)['median_ms'] / 1e3:.1f} s",
    "far-bound": _far_bound,
    "plain-list": lambda: _plain_seconds("transformer, "),
    "plain-stack": lambda: _plain_seconds("transformer stack, "),
}
