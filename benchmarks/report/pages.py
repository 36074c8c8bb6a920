"""Writes each table and each figure between its markers in the README and in `docs`."""

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.contenders import names
from benchmarks.report.fronts import FRONTS
from benchmarks.report.gpu import GPU
from benchmarks.report.loops import LOOPS
from benchmarks.report.programs import PROGRAMS
from benchmarks.report.results import Run, find, load, quickest, within
from benchmarks.report.table import tidy

ROOT = Path(__file__).parents[2]
TABLES = LOOPS | FRONTS | PROGRAMS | GPU
BLOCK = re.compile(
    r"(<!-- table of (?P<name>[\w-]+), made by benchmarks/report -->\n+)"
    r".*?(\n+<!-- end of table -->)",
    re.DOTALL,
)
FIGURE = re.compile(r"(<!-- figure (?P<name>[\w-]+) -->)[^<]*(<!-- /figure -->)")


def with_tables(page: str) -> str:
    """The page with fresh tables and figures between their markers."""
    page = BLOCK.sub(lambda match: f"{match[1]}{TABLES[match['name']]}{match[3]}", page)
    figure = lambda match: f"{match[1]}{tidy(FIGURES[match['name']]())}{match[3]}"  # noqa: E731
    return FIGURE.sub(figure, page)


def write() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        page.write_text(with_tables(page.read_text()))


# Numbers in the text of the pages


def _above_budget(share: float) -> str:
    """By how much the temporaries exceed `memory=`."""
    runs = load("budget-cpu").runs
    run = within(runs, names.JAX_REVOLVE, share)
    assert run is not None
    return f"{(run['temp_bytes'] - run['budget']) / 1e6:.1f} MB"


def _of_layers(workload: str, share: float | None = None) -> Run:
    """The plain model, or the one with a share of its memory as the budget."""
    runs = [r for r in load("layers-cpu").runs if r["workload"].startswith(workload)]
    plain = quickest(runs, contender=names.PLAIN_LAYERS)
    if share is None:
        return plain
    bytes = plain["temp_bytes"]
    return quickest(r for r in runs if r["budget"] and abs(r["budget"] / bytes - share) < 0.01)


def _far_bound() -> str:
    """The time with a bound of 2**20 and default checkpoints, over the time with a bound of 16."""
    runs = find(load("while-cpu").runs, family="bounds", contender=names.JAX_REVOLVE)
    runs = [run for run in runs if "default" in run["quantity"]]
    near, far = (quickest(runs, max_steps=bound) for bound in (16, 2**20))
    return f"{far['median_ms'] / near['median_ms']:.1f}"


LIST, STACK = "transformer, ", "transformer stack, "
FIGURES: dict[str, Callable[[], str]] = {
    "above-budget": lambda: _above_budget(0.02),
    "stack-half": lambda: f"{_of_layers(STACK, 0.5)['MB']:.0f} MB",
    "stack-half-time": lambda: f"{_of_layers(STACK, 0.5)['seconds']:.1f} s",
    "stack-quarter": lambda: f"{_of_layers(STACK, 0.25)['MB']:.0f} MB",
    "stack-quarter-time": lambda: f"{_of_layers(STACK, 0.25)['seconds']:.1f} s",
    "far-bound": _far_bound,
    "plain-list": lambda: f"{_of_layers(LIST)['seconds']:.0f} s",
    "plain-stack": lambda: f"{_of_layers(STACK)['seconds']:.0f} s",
}
