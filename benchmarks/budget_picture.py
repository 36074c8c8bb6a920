"""The picture of what memory costs: times over memory, both relative to storing everything."""

import json
from pathlib import Path
from typing import Any

from budget_contenders import REVOLVE
from budget_measurements import GRADIENT
from contenders import EQUINOX, NESTED, OURS, PLAIN

STYLES = {
    PLAIN: {"label": "lax.scan, stores everything", "color": "#000000", "marker": "*"},
    NESTED: {
        "label": "nested remat scans",
        "color": "#009E73",
        "marker": "^",
        "markerfacecolor": "none",
        "markeredgewidth": 1.5,
    },
    EQUINOX: {"label": "Equinox, checkpointed", "color": "#CC79A7", "marker": "D"},
    REVOLVE: {"label": "pure Revolve (single steps)", "color": "#E69F00", "marker": "s"},
    OURS: {"label": "jax_revolve, memory=...", "color": "#0072B2", "marker": "o"},
}
"""Colors that the color-blind tell apart (Okabe and Ito)."""

SIZES = {PLAIN: 14, NESTED: 11}
TICKS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
MISSING = 'the picture needs Matplotlib: pip install "jax_revolve[plot]"'


def draw(results: Path) -> Path | None:
    """Draws a file of results beside it, and returns the picture's path; `None` if no loop was
    compared with rivals."""
    record = json.loads(results.read_text())
    runs = [m for m in record["measurements"] if m["quantity"] == GRADIENT]
    workloads = list(dict.fromkeys(run["workload"] for run in runs))
    if not workloads:
        return None
    figure, panels = _figure(len(workloads))
    for ax, workload in zip(panels, workloads, strict=True):
        _panel(ax, workload, [run for run in runs if run["workload"] == workload])
    panels[0].set_ylim(bottom=0)  # of all panels
    panels[0].set_ylabel("time of the gradient / lax.scan")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=3, frameon=False)
    path = results.with_suffix(".png")
    figure.savefig(path, dpi=150)
    return path


def _figure(panels: int) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING) from error
    figure = Figure(figsize=(max(4.8 * panels, 8), 4.6), layout="constrained")
    return figure, list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])


def _panel(ax: Any, workload: str, runs: list[dict[str, Any]]) -> None:
    """One workload: a line for each contender, from little memory to much."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    for name, style in STYLES.items():
        points = sorted(
            (run["memory_ratio"], run["time_ratios"]["plain"])
            for run in runs
            if run["contender"] == name
        )
        line = "none" if name in (PLAIN, NESTED) else "-"
        ax.plot(*zip(*points, strict=True), linestyle=line, markersize=SIZES.get(name, 7), **style)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(TICKS))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    ax.axhline(1, color="#000000", linewidth=0.5, zorder=0)
    ax.grid(axis="both", color="#DDDDDD", linewidth=0.5)
    ax.set_axisbelow(True)
    ax.set_xlabel("memory / lax.scan")
    ax.set_title(workload, fontsize="medium")
