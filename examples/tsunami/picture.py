"""One figure that shows the sea floor, the sources, the gauges and the memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from .bathymetry import Array, Bathymetry
from .scenario import Gauge

LAND = "#e9e4d8"
INK = "#22303c"
BEFORE = "#9aa5ad"
AFTER = "#d1495b"
SEA_COLORS, SURFACE_COLORS = "YlGnBu", "RdBu_r"
CLOSE_UP = (-126.0, -124.25, 48.0, 49.15)  # degrees: west, east, south, north


@dataclass(frozen=True)
class Findings:
    """The contents of the figure.

    - `source`, `recovered`: sea surface in meters on the grid of `bathymetry`.
    - `hours`: time of each reading.
    - `observed`, `before`, `after`: gauge heights in meters, shape `(len(hours), len(gauges))`.
    - `memory`: temporary bytes by name of the scan.
    """

    bathymetry: Bathymetry
    gauges: tuple[Gauge, ...]
    positions: tuple[tuple[int, int], ...]
    source: Array
    recovered: Array
    hours: Array
    observed: Array
    before: Array
    after: Array
    memory: dict[str, int]


def draw(findings: Findings, output: Path) -> None:
    """Write the figure as a PNG."""
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.06)
    figure = Figure(figsize=(15.0, 10.0), facecolor="white", layout=layout)
    figure.suptitle(
        f"The source of a tsunami, recovered from {len(findings.gauges)} gauges by gradients "
        f"through {len(findings.hours)} time steps",
        fontsize=15,
        fontweight="bold",
        color=INK,
    )
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.0, 1.2])
    top, bottom = halves
    _maps(findings, top)
    left, right = bottom.subfigures(1, 2, width_ratios=[3.8, 1.0])
    _traces(findings, left)
    _memory(findings.memory, right)
    figure.savefig(output, dpi=120, format="png")


def _maps(findings: Findings, figure: SubFigure) -> None:
    overview, true, recovered = figure.subplots(1, 3, width_ratios=[1.5, 1.0, 1.0])
    _depth_map(findings, overview, figure)
    limit = float(np.max(np.abs(findings.source)))
    mesh = _surface_map(findings, true, findings.source, limit)
    true.set_title("True source", loc="left")
    _surface_map(findings, recovered, findings.recovered, limit)
    recovered.set_title("Recovered source", loc="left")
    recovered.set_ylabel("")
    figure.colorbar(mesh, ax=[true, recovered], label="initial sea surface (m)", shrink=0.8)


def _depth_map(findings: Findings, axes: Axes, figure: SubFigure) -> None:
    sea_floor = findings.bathymetry
    mesh = axes.pcolormesh(
        sea_floor.longitude,
        sea_floor.latitude,
        np.ma.masked_where(~sea_floor.sea, sea_floor.depth),
        cmap=SEA_COLORS,
        norm=LogNorm(10.0, 1500.0),
    )
    ticks = [10, 30, 100, 300, 1000]
    bar = figure.colorbar(mesh, ax=axes, label="depth (m)", shrink=0.8, ticks=ticks)
    bar.ax.set_yticklabels([str(tick) for tick in ticks])
    bar.ax.minorticks_off()
    _coast(sea_floor, axes)
    _gauge_marks(findings, axes, numbered=True)
    west, east, south, north = CLOSE_UP
    corner = (max(west, float(sea_floor.longitude[0])), max(south, float(sea_floor.latitude[0])))
    frame = Rectangle(corner, east - corner[0], north - corner[1], fill=False, color=INK, ls="--")
    axes.add_patch(frame)
    axes.set_xticks(np.arange(-125.5, -122.0, 1.0))
    axes.set_title("Depth, gauges and the area of the other maps (dashed)", loc="left")


def _surface_map(findings: Findings, axes: Axes, surface: Array, limit: float) -> QuadMesh:
    sea_floor = findings.bathymetry
    mesh = axes.pcolormesh(
        sea_floor.longitude,
        sea_floor.latitude,
        np.ma.masked_where(~sea_floor.sea, surface),
        cmap=SURFACE_COLORS,
        vmin=-limit,
        vmax=limit,
    )
    _coast(sea_floor, axes)
    _gauge_marks(findings, axes, numbered=False)
    west, east, south, north = CLOSE_UP
    axes.set_xlim(max(west, float(sea_floor.longitude[0])), east)
    axes.set_ylim(max(south, float(sea_floor.latitude[0])), north)
    axes.set_xticks(np.arange(-125.5, -124.2, 0.5))
    return mesh


def _coast(sea_floor: Bathymetry, axes: Axes) -> None:
    """Land color, coastline, and an undistorted aspect ratio."""
    axes.set_facecolor(LAND)
    wet = sea_floor.sea.astype(float)
    axes.contour(sea_floor.longitude, sea_floor.latitude, wet, [0.5], colors=INK, linewidths=0.6)
    axes.set_aspect(1.0 / np.cos(np.deg2rad(float(np.mean(sea_floor.latitude)))))
    axes.set_xlabel("longitude (degrees east)")
    axes.set_ylabel("latitude (degrees north)")


def _gauge_marks(findings: Findings, axes: Axes, *, numbered: bool) -> None:
    sea_floor = findings.bathymetry
    for number, (row, column) in enumerate(findings.positions, start=1):
        place = float(sea_floor.longitude[column]), float(sea_floor.latitude[row])
        axes.plot(*place, "o", markersize=4.5, color=AFTER, markeredgecolor="white")
        if numbered:
            axes.annotate(
                str(number),
                place,
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=9,
                fontweight="bold",
                color=INK,
                bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "alpha": 0.75, "lw": 0},
            )


def _traces(findings: Findings, figure: SubFigure) -> None:
    panels = figure.subplots(3, -(-len(findings.gauges) // 3), sharex=True, squeeze=False)
    for index, axes in enumerate(panels.flat):
        if index >= len(findings.gauges):
            axes.set_axis_off()
            continue
        _trace(findings, index, axes)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("time since the earthquake (hours)", fontsize="medium")
    figure.supylabel("height at the gauge (m)", fontsize="medium")


def _trace(findings: Findings, index: int, axes: Axes) -> None:
    hours = findings.hours
    axes.plot(hours, findings.observed[:, index], color=INK, lw=2.2, alpha=0.45, label="observed")
    axes.plot(hours, findings.before[:, index], "--", color=BEFORE, lw=1.2, label="before (still)")
    axes.plot(hours, findings.after[:, index], color=AFTER, lw=1.0, label="after")
    axes.set_title(f"{index + 1}  {findings.gauges[index].name}", loc="left", fontsize=9.5)
    axes.set_xlim(0.0, float(hours[-1]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=hours[-1] > 2.0))
    axes.tick_params(labelsize=8)


def _memory(memory: dict[str, int], figure: SubFigure) -> None:
    axes = figure.subplots()
    megabytes = [size / 1e6 for size in memory.values()]
    bars = axes.bar(list(memory), megabytes, color=[BEFORE, AFTER], width=0.6)
    axes.bar_label(bars, [readable(size) for size in memory.values()], padding=3, fontweight="bold")
    axes.set_yscale("log")
    axes.set_ylim(1.0, 4.0 * max(megabytes))
    axes.set_ylabel("temporary memory (MB)")
    axes.set_title("Memory of one gradient", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)


def readable(size: int) -> str:
    """A number of bytes in MB or GB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
