"""Pictures of files of results, drawn beside them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contenders import names
from benchmarks.report.results import FOLDER, Run, find, load, quickest

COLORS = {
    names.LAX_SCAN: "#000000",
    names.REMAT: "#E69F00",
    names.SINGLE_STEPS: "#E69F00",
    names.NESTED: "#009E73",
    names.EQUINOX: "#CC79A7",
    names.JAX_REVOLVE: "#0072B2",
}
"""That the color-blind tell apart (Okabe and Ito)."""

MARKERS = dict(zip(COLORS, "*ss^Do", strict=True))
OVER_LENGTH = {
    names.LAX_SCAN: "lax.scan",
    names.REMAT: "jax.checkpoint on every step",
    names.NESTED: "best nested scans",
    names.EQUINOX: "Equinox, checkpointed",
    names.JAX_REVOLVE: "jax_revolve",
}
OVER_MEMORY = {
    names.LAX_SCAN: "lax.scan, stores everything",
    names.NESTED: "nested remat scans",
    names.EQUINOX: "Equinox, checkpointed",
    names.SINGLE_STEPS: "pure Revolve (single steps)",
    names.JAX_REVOLVE: "jax_revolve, memory=...",
}
TICKS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def headline(runs: list[Run]) -> Any:
    """A gradient's memory and time over the length of the loop."""
    from matplotlib.ticker import EngFormatter

    figure, (memory, time) = _figure(2, (9.6, 4.2))
    for name, label in OVER_LENGTH.items():
        lengths = sorted({run["length"] for run in runs})
        best = [quickest(runs, contender=name, length=n) for n in lengths]
        style = {"linewidth": 2.6 if name == names.JAX_REVOLVE else 1.4}
        if name == names.REMAT:  # its memory is that of lax.scan here, whose line is to be seen too
            style |= {"dashes": (4, 4), "markersize": 5}
        if name == names.LAX_SCAN:
            style |= {"markersize": 11}
        style |= {"label": label, "color": COLORS[name], "marker": MARKERS[name]}
        memory.plot(lengths, [run["temp_bytes"] for run in best], **style)
        time.plot(lengths, [1e3 * run["median_ms"] / run["length"] for run in best], **style)
    _finish(memory, "temporary memory of the gradient")
    _finish(time, "time of the gradient per step, µs")
    for ax in (memory, time):
        _log_axis(ax, "steps", lambda n, _: f"{n:,.0f}".replace(",", " "))
    memory.set_yscale("log")
    memory.yaxis.set_major_formatter(EngFormatter("B"))
    time.set_ylim(bottom=0)
    _legend(figure, memory, columns=5)
    return figure


def budget(runs: list[Run]) -> Any:
    """What memory costs: times over memory, both relative to storing everything."""
    from matplotlib.ticker import FixedLocator

    runs = find(runs, quantity="gradient")
    workloads = list(dict.fromkeys(run["workload"] for run in runs))
    figure, panels = _figure(len(workloads), (max(4.8 * len(workloads), 8), 4.6), sharey=True)
    for ax, workload in zip(panels, workloads, strict=True):
        for name, label in OVER_MEMORY.items():
            _trade_off(ax, label, find(runs, workload=workload, contender=name))
        _log_axis(ax, "memory / lax.scan", lambda share, _: f"{100 * share:g}%")
        ax.xaxis.set_major_locator(FixedLocator(TICKS))
        ax.axhline(1, color="#000000", linewidth=0.5, zorder=0)
        _finish(ax, workload)
    panels[0].set_ylim(bottom=0)  # of all panels
    panels[0].set_ylabel("time of the gradient / lax.scan")
    _legend(figure, panels[0], columns=3)
    return figure


def _trade_off(ax: Any, label: str, runs: list[Run]) -> None:
    """One contender, from little memory to much."""
    name = runs[0]["contender"]
    points = sorted(
        (run.memory_over(names.LAX_SCAN), run.time_over(names.LAX_SCAN)) for run in runs
    )
    style: dict[str, Any] = {"color": COLORS[name], "marker": MARKERS[name], "label": label}
    if name == names.NESTED:
        style |= {"markerfacecolor": "none", "markeredgewidth": 1.5}
    style["markersize"] = {names.LAX_SCAN: 14, names.NESTED: 11}.get(name, 7)
    style["linestyle"] = "none" if name in (names.LAX_SCAN, names.NESTED) else "-"
    ax.plot(*zip(*points, strict=True), **style)


def _figure(panels: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False, **options)[0]


def _log_axis(ax: Any, label: str, text: Callable[[float, Any], str]) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(text))
    ax.set_xlabel(label)


def _finish(ax: Any, title: str) -> None:
    ax.set_title(title, fontsize="medium")
    ax.grid(color="#DDDDDD", linewidth=0.5)
    ax.set_axisbelow(True)


def _legend(figure: Any, ax: Any, columns: int) -> None:
    handles, labels = ax.get_legend_handles_labels()
    where = {"loc": "outside lower center", "ncols": columns, "frameon": False}
    figure.legend(handles[::-1], labels[::-1], **where)


PICTURES = {"headline": headline, "budget": budget}


def write(folder: Path = FOLDER) -> None:
    """One for each device that there are results of; the site needs a copy among its pages."""
    for name, draw in PICTURES.items():
        for results in FOLDER.glob(f"{name}-*.json"):
            figure = draw(list(load(results.stem).runs))
            figure.savefig(folder / f"{results.stem}.png", dpi=150)
    pages = FOLDER.parents[1] / "docs" / "pictures"
    shutil.copyfile(FOLDER / "headline-cpu.png", pages / "headline-cpu.png")
