"""Pictures of files of results, drawn beside them."""

import shutil
from collections.abc import Callable
from typing import Any

from benchmarks.contenders import names
from benchmarks.report.results import FOLDER, Run, find, load, quickest

STYLES: dict[str, dict[str, Any]] = {
    names.LAX_SCAN: {"color": "#000000", "marker": "*"},
    names.REMAT: {"color": "#E69F00", "marker": "s"},
    names.SINGLE_STEPS: {"color": "#E69F00", "marker": "s"},
    names.SAVES_PRODUCTS: {"color": "#D55E00", "marker": "v"},
    names.NESTED: {"color": "#009E73", "marker": "^"},
    names.EQUINOX: {"color": "#CC79A7", "marker": "D"},
    names.JAX_REVOLVE: {"color": "#0072B2", "marker": "o"},
}
"""Colors that the color-blind tell apart (Okabe and Ito)."""

OVER_MEMORY: dict[str, dict[str, Any]] = {
    names.LAX_SCAN: {"label": "lax.scan, stores everything", "markersize": 14, "linestyle": "none"},
    names.NESTED: {
        "label": "nested remat scans",
        "markersize": 11,
        "linestyle": "none",
        "markerfacecolor": "none",
        "markeredgewidth": 1.5,
    },
    names.EQUINOX: {"label": "Equinox, checkpointed"},
    names.SINGLE_STEPS: {"label": "pure Revolve (single steps)"},
    names.SAVES_PRODUCTS: {"label": "jax.checkpoint that saves products", "linestyle": "none"},
    names.JAX_REVOLVE: {"label": "jax_revolve, memory=..."},
}
FRONTS = ("2-D wave", "gru")
"""The families of the workloads on the first page: a field, and a network."""

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def over_memory(runs: list[Run]) -> Any:
    """What memory costs: times over memory, both relative to storing everything."""
    from matplotlib.ticker import FixedLocator

    runs = find(runs, quantity="gradient")
    workloads = list(dict.fromkeys(run["workload"] for run in runs))
    figure, panels = _figure(len(workloads), (max(4.8 * len(workloads), 8), 4.6), sharey=True)
    for ax, workload in zip(panels, workloads, strict=True):
        plain = quickest(runs, workload=workload, contender=names.LAX_SCAN)
        for name, style in OVER_MEMORY.items():
            points = sorted(
                (run["temp_bytes"] / plain["temp_bytes"], run["median_ms"] / plain["median_ms"])
                for run in find(runs, workload=workload, contender=name)
            )
            style = {"markersize": 7} | STYLES[name] | style
            if points:
                ax.plot(*zip(*points, strict=True), **style)
        _finish(ax, workload, "memory / lax.scan", lambda share, _: f"{100 * share:g}%")
        ax.xaxis.set_major_locator(FixedLocator(SHARES))
        ax.axhline(1, color="#000000", linewidth=0.5, zorder=0)
    panels[0].set_ylim(bottom=0)  # of all panels
    panels[0].set_ylabel("time of the gradient / lax.scan")
    _legend(figure, panels[0], columns=3)
    return figure


def fronts(runs: list[Run]) -> Any:
    """What memory costs the workloads on the first page."""
    return over_memory([run for run in runs if run["family"] in FRONTS])


def _figure(panels: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False, **options)[0]


def _finish(ax: Any, title: str, label: str, text: Callable[[float, Any], str]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    ax.set_title(title, fontsize="medium")
    ax.set_xlabel(label)
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(text))
    ax.grid(color="#DDDDDD", linewidth=0.5)
    ax.set_axisbelow(True)


def _legend(figure: Any, ax: Any, columns: int) -> None:
    handles, labels = ax.get_legend_handles_labels()
    where = {"loc": "outside lower center", "ncols": columns, "frameon": False}
    figure.legend(handles[::-1], labels[::-1], **where)


PICTURES = {"fronts": fronts}


def write() -> None:
    """One for each device that there are results of; the site needs a copy among its pages."""
    for name, draw in PICTURES.items():
        for results in FOLDER.glob(f"{name}-*.json"):
            draw(list(load(results.stem).runs)).savefig(results.with_suffix(".png"), dpi=150)
    pages = FOLDER.parents[1] / "docs" / "pictures"
    shutil.copyfile(FOLDER / "fronts-cpu.png", pages / "fronts-cpu.png")
