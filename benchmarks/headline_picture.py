"""The picture of a gradient's memory and time over the length of the loop."""

import json
from pathlib import Path
from typing import Any

from budget_picture import MISSING
from contenders import EQUINOX, NESTED, OURS, PLAIN, REMAT

STYLES = {
    PLAIN: ("lax.scan", "#000000", "*"),
    REMAT: ("jax.checkpoint on every step", "#E69F00", "s"),
    NESTED: ("best nested scans", "#009E73", "^"),
    EQUINOX: ("Equinox, checkpointed", "#CC79A7", "D"),
    OURS: ("jax_revolve", "#0072B2", "o"),
}
"""Colors that the color-blind tell apart (Okabe and Ito)."""


def draw(results: Path) -> Path:
    """Draws a file of results beside it, and returns the picture's path."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING) from error
    runs = json.loads(results.read_text())["measurements"]
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    memory, time = figure.subplots(1, 2)
    for name in STYLES:
        best = _best([run for run in runs if run["contender"] == name])
        lengths = [run["length"] for run in best]
        _line(memory, name, lengths, [run["temp_bytes"] for run in best])
        _line(time, name, lengths, [1e3 * run["median_ms"] / run["length"] for run in best])
    _finish(memory, "temporary memory of the gradient")
    _finish(time, "time of the gradient per step, µs")
    memory.set_yscale("log")
    memory.yaxis.set_major_formatter(EngFormatter("B"))
    time.set_ylim(bottom=0)
    handles, labels = memory.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=5, frameon=False)
    path = results.with_suffix(".png")
    figure.savefig(path, dpi=150)
    return path


def _best(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The quickest of each length: several nested scans are timed."""
    found: dict[int, dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: -run["median_ms"]):
        found[run["length"]] = run
    return [found[length] for length in sorted(found)]


def _line(ax: Any, name: str, lengths: list[int], values: list[float]) -> None:
    label, color, marker = STYLES[name]
    style = {"linewidth": 2.6 if name == OURS else 1.4}
    if name == REMAT:  # its memory is that of lax.scan here, whose line is to be seen too
        style |= {"dashes": (4, 4), "markersize": 5}
    if name == PLAIN:
        style |= {"markersize": 11}
    ax.plot(lengths, values, label=label, color=color, marker=marker, **style)


def _finish(ax: Any, title: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}".replace(",", " ")))
    ax.set_xlabel("steps")
    ax.set_title(title, fontsize="medium")
    ax.grid(color="#DDDDDD", linewidth=0.5)
    ax.set_axisbelow(True)
