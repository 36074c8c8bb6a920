"""Pictures for the documentation: what memory costs, and how costs grow with the length."""

from collections.abc import Callable
from typing import Any, TypeAlias

from benchmarks.contenders.scans import EQUINOX, JAX_REVOLVE, LAX_SCAN, NESTED, SAVES_PRODUCTS
from benchmarks.fronts import ON_THE_FIRST_PAGE as FAMILIES
from benchmarks.report.results import FOLDER, Run, find, load, quickest
from benchmarks.runner.programs import PHASES

Style: TypeAlias = tuple[str, str, str, int, str]
STYLES: dict[str, Style] = {
    LAX_SCAN.name: ("lax.scan, stores everything", "C0", "*", 14, "none"),
    NESTED: ("nested remat scans", "C1", "^", 11, "none"),
    EQUINOX: ("Equinox, checkpointed", "C2", "D", 7, "-"),
    SAVES_PRODUCTS.name: ("jax.checkpoint that saves products", "C3", "v", 7, "none"),
    JAX_REVOLVE: ("jax_revolve, memory=...", "C4", "o", 7, "-"),
}
"""Label, color in the theme, marker, its size, and the line."""


def _theme(ink: str, grid: str, *colors: str) -> Any:
    """Colors that the color-blind tell apart (Okabe and Ito)."""
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    cycle = f"cycler('color', {[ink, *colors]})"
    return {**dict.fromkeys(names, ink), "grid.color": grid, "axes.prop_cycle": cycle}


THEMES = {
    "light": _theme("#222222", "#dddddd", "#009E73", "#CC79A7", "#D55E00", "#0072B2"),
    "dark": _theme("#d8d8e0", "#4a4a58", "#009E73", "#CC79A7", "#FF9A4D", "#56B4E9"),
}
PAGES = FOLDER.parents[1] / "docs" / "pictures"
DATE = "Creation Time"
"""What the date of the results is called in a picture of them."""
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def over_memory(runs: list[Run]) -> Any:
    """Times over memory, both relative to storing everything."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = Figure(figsize=(4.8 * len(FAMILIES), 4.6), layout="constrained")
    panels = figure.subplots(1, len(FAMILIES), squeeze=False, sharey=True)[0]
    for ax, family in zip(panels, FAMILIES, strict=True):
        shown = find(runs, family=family, quantity="gradient")
        plain = quickest(shown, contender=LAX_SCAN.name)
        for name, (label, color, marker, size, line) in STYLES.items():
            points = sorted(
                (run["temp_bytes"] / plain["temp_bytes"], run["median_ms"] / plain["median_ms"])
                for run in find(shown, contender=name)
            )
            if points:
                how: dict[str, Any] = {"marker": marker, "markersize": size, "linestyle": line}
                ax.plot(*zip(*points, strict=True), label=label, color=color, **how)
        ax.set_title(plain["workload"], fontsize="medium")
        ax.set_xlabel("memory / lax.scan")
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        ax.xaxis.set_major_locator(FixedLocator(SHARES))
        ax.grid(linewidth=0.5)
        ax.set_axisbelow(True)
        ax.axhline(1, color="C0", linewidth=0.5, zorder=0)
    panels[0].set_ylim(bottom=0)  # of all panels
    panels[0].set_ylabel("time of the gradient / lax.scan")
    handles, labels = panels[0].get_legend_handles_labels()
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "frameon": False}
    figure.legend(handles[::-1], labels[::-1], **where)
    return figure


GROWING: dict[str, Callable[[Run], float]] = {
    "memory in MB": lambda run: run["MB"],
    "time of a step in µs": lambda run: 1e3 * run["median_ms"] / run["length"],
    "time to trace, lower and compile in s": lambda run: sum(run[phase] for phase in PHASES),
    "instructions": lambda run: run["instructions"],
}


def over_length(runs: list[Run]) -> Any:
    """What gradients cost over the length of the loop, with a fixed budget for ours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 7.6), layout="constrained")
    panels = list(figure.subplots(2, 2, sharex=True).flat)
    shown = [run for run in find(runs, varied="length") if run["median_ms"] is not None]
    for ax, (title, value) in zip(panels, GROWING.items(), strict=True):
        for name, (label, color, marker, size, _) in STYLES.items():
            kinds: dict[str, list[Run]] = {}
            for run in find(shown, contender=name):
                levels = run["detail"].count(" x ") + 1
                kinds.setdefault(f", {levels} levels" if name == NESTED else "", []).append(run)
            for (kind, points), line in zip(kinds.items(), ("-", ":"), strict=False):
                xy = [(run["length"], value(run)) for run in points]
                how: dict[str, Any] = {"marker": marker, "markersize": 0.7 * size}
                how |= {"linestyle": line, "color": color}
                ax.plot(*zip(*xy, strict=True), label=label.split(",")[0] + kind, **how)
        ax.set_title(title, fontsize="medium")
        ax.set_xscale("log")
        if title == "memory in MB":
            ax.set_yscale("log")
        else:
            ax.set_ylim(bottom=0)
        ax.grid(linewidth=0.5)
        ax.set_axisbelow(True)
    for ax in panels[2:]:
        ax.set_xlabel("steps")
    handles, labels = panels[0].get_legend_handles_labels()
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "frameon": False}
    figure.legend(handles[::-1], labels[::-1], **where)
    return figure


def write() -> None:
    """One for each device that there are results of, with their date, for light and dark pages."""
    from matplotlib import rc_context

    for name, draw in {"fronts": over_memory, "growth": over_length}.items():
        for file in FOLDER.glob(f"{name}-*.json"):
            results = load(file.stem)
            for theme, style in THEMES.items():
                with rc_context(style):
                    figure = draw(list(results.runs))
                    path = PAGES / f"{file.stem}-{theme}.png"
                    date = {DATE: results.machine["date"]}
                    figure.savefig(path, dpi=150, transparent=True, metadata=date)
