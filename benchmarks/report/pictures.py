"""Pictures of files of results, among the pages of the documentation."""

from collections.abc import Callable
from typing import Any

from benchmarks.contenders import names
from benchmarks.report.fronts import ON_THE_FIRST_PAGE
from benchmarks.report.results import FOLDER, Run, find, load, quickest

STYLES: dict[str, dict[str, Any]] = {
    names.LAX_SCAN: {"marker": "*"},
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
INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
THEMES = {
    "light": {**dict.fromkeys(INK, "#222222"), "grid.color": "#dddddd"},
    "dark": {**dict.fromkeys(INK, "#d8d8e0"), "grid.color": "#4a4a58"},
}
PAGES = FOLDER.parents[1] / "docs" / "pictures"

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def over_memory(runs: list[Run]) -> Any:
    """What memory costs: times over memory, both relative to storing everything."""
    from matplotlib import rcParams
    from matplotlib.ticker import FixedLocator

    ink = rcParams["text.color"]
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
            style = {"markersize": 7, "color": ink} | STYLES[name] | style
            if points:
                ax.plot(*zip(*points, strict=True), **style)
        _finish(ax, workload, "memory / lax.scan", lambda share, _: f"{100 * share:g}%")
        ax.xaxis.set_major_locator(FixedLocator(SHARES))
        ax.axhline(1, color=ink, linewidth=0.5, zorder=0)
    panels[0].set_ylim(bottom=0)  # of all panels
    panels[0].set_ylabel("time of the gradient / lax.scan")
    _legend(figure, panels[0], columns=3)
    return figure


def fronts(runs: list[Run]) -> Any:
    """What memory costs the workloads on the first page."""
    return over_memory([run for run in runs if run["family"] in ON_THE_FIRST_PAGE])


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
    ax.grid(linewidth=0.5)
    ax.set_axisbelow(True)


def _legend(figure: Any, ax: Any, columns: int) -> None:
    handles, labels = ax.get_legend_handles_labels()
    where = {"loc": "outside lower center", "ncols": columns, "frameon": False}
    figure.legend(handles[::-1], labels[::-1], **where)


PICTURES = {"fronts": fronts}


def write() -> None:
    """One for each device that there are results of, for light and for dark pages."""
    from matplotlib import rc_context

    for name, draw in PICTURES.items():
        for results in FOLDER.glob(f"{name}-*.json"):
            runs = list(load(results.stem).runs)
            for theme, style in THEMES.items():
                with rc_context(style):
                    path = PAGES / f"{results.stem}-{theme}.png"
                    draw(runs).savefig(path, dpi=150, transparent=True)
