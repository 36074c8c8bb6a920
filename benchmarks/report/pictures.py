"""The picture of what memory costs, among the pages of the documentation."""

from typing import Any, TypeAlias

from benchmarks.contenders.scans import EQUINOX, JAX_REVOLVE, LAX_SCAN, NESTED, SAVES_PRODUCTS
from benchmarks.fronts import ON_THE_FIRST_PAGE as FAMILIES
from benchmarks.report.results import FOLDER, Run, find, load, quickest

Style: TypeAlias = tuple[str, str | None, str, int, str]
STYLES: dict[str, Style] = {
    LAX_SCAN.name: ("lax.scan, stores everything", None, "*", 14, "none"),
    NESTED: ("nested remat scans", "#009E73", "^", 11, "none"),
    EQUINOX: ("Equinox, checkpointed", "#CC79A7", "D", 7, "-"),
    SAVES_PRODUCTS.name: ("jax.checkpoint that saves products", "#D55E00", "v", 7, "none"),
    JAX_REVOLVE: ("jax_revolve, memory=...", "#0072B2", "o", 7, "-"),
}
"""Label, color, marker, its size, and the line: colors that the color-blind tell apart (Okabe and
Ito)."""

INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
THEMES: dict[str, Any] = {
    "light": {**dict.fromkeys(INK, "#222222"), "grid.color": "#dddddd"},
    "dark": {**dict.fromkeys(INK, "#d8d8e0"), "grid.color": "#4a4a58"},
}
PAGES = FOLDER.parents[1] / "docs" / "pictures"
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def over_memory(runs: list[Run]) -> Any:
    """Times over memory, both relative to storing everything."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ink = rcParams["text.color"]
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
                ax.plot(*zip(*points, strict=True), label=label, color=color or ink, **how)
        ax.set_title(plain["workload"], fontsize="medium")
        ax.set_xlabel("memory / lax.scan")
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        ax.xaxis.set_major_locator(FixedLocator(SHARES))
        ax.grid(linewidth=0.5)
        ax.set_axisbelow(True)
        ax.axhline(1, color=ink, linewidth=0.5, zorder=0)
    panels[0].set_ylim(bottom=0)  # of all panels
    panels[0].set_ylabel("time of the gradient / lax.scan")
    handles, labels = panels[0].get_legend_handles_labels()
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "frameon": False}
    figure.legend(handles[::-1], labels[::-1], **where)
    return figure


def write() -> None:
    """One for each device that there are results of, for light and for dark pages."""
    from matplotlib import rc_context

    for results in FOLDER.glob("fronts-*.json"):
        for theme, style in THEMES.items():
            with rc_context(style):
                figure = over_memory(list(load(results.stem).runs))
                figure.savefig(PAGES / f"{results.stem}-{theme}.png", dpi=150, transparent=True)
