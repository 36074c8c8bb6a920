"""A schedule as a picture, in which each action adds a line."""

from textwrap import wrap
from typing import Any, TypeAlias

from jax_revolve.schedule.actions import Advance, Discard, Free, Store, Tape, Write
from jax_revolve.schedule.plan import Plan

Line: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

MOST_BLOCKS = 100_000
MISSING = "plot() needs matplotlib: pip install matplotlib"

STORED, HELD, ADVANCED, TAPED = "in storage", "checkpoint held", "advanced", "taped, transposed"
STYLES = {STORED: ("#009E73", 1), HELD: ("#808080", 1), ADVANCED: ("#0072B2", 1)}
STYLES[TAPED] = ("#D55E00", 2)
"""Colors that the color-blind tell apart (Okabe and Ito), and weights."""


def picture(plan: Plan, ax: Any = None) -> Any:
    """The schedule in Matplotlib, steps over evaluations, in these axes or new ones."""
    layers = drawn_lines(plan)
    ax = new_axes() if ax is None else ax
    from matplotlib import collections, ticker

    thin = max(0.6, 2 - sum(map(len, layers.values())) / 200)
    for name, lines in layers.items():
        (color, weight), label = STYLES[name], name
        if plan.segments and name == STORED:
            label = f"{STORED} ({plan.writes} writes, {plan.reads} reads)"
        style = {"colors": color, "linewidths": weight * thin, "label": label}
        if lines or name != STORED:
            ax.add_collection(collections.LineCollection(lines, **style))
    ax.update_datalim([(0, 0), (float(plan.evaluations or 1), float(plan.length or 1))])
    ax.margins(0.02)
    ax.autoscale_view()
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(ticker.MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        if plan.evaluations >= 10**5:
            axis.set_major_formatter(ticker.EngFormatter())
    ax.set(xlabel="evaluations", ylabel="step")
    _explain(ax, str(plan))
    return ax


def drawn_lines(plan: Plan) -> dict[str, list[Line]]:
    """The lines of a picture, each from one (evaluations, step) to another."""
    if plan.blocks > MOST_BLOCKS:
        raise ValueError(
            f"blocks must be at most {MOST_BLOCKS} in a plan that is drawn, but are {plan.blocks}. "
            "Draw the plan of a shorter loop, with fewer checkpoints."
        )
    found: dict[str, list[Line]] = {name: [] for name in STYLES}
    begun = dict[tuple[str, int], tuple[int, int]]()
    clock = 0
    for action in plan:
        match action:
            case Store(place, position) | Write(place, position):
                name = HELD if isinstance(action, Store) else STORED
                begun.setdefault((name, place), (clock, position))
            case Free(place) | Discard(place):
                name = HELD if isinstance(action, Free) else STORED
                begin = begun.pop((name, place))
                found[name].append((begin, (clock, begin[1])))
            case Advance(start, stop) | Tape(start, stop):
                name = ADVANCED if isinstance(action, Advance) else TAPED
                low, high = (start, stop) if name == ADVANCED else (stop, start)
                begin, end, lines = (clock, low), (clock + stop - start, high), found[name]
                if lines and lines[-1][1] == begin:  # this one continues the last
                    begin = lines.pop()[0]
                lines.append((begin, end))
                clock = end[0]
            case _:
                pass
    return found


def new_axes() -> Any:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise  # Matplotlib is there, and lacks something itself
        raise ModuleNotFoundError(MISSING, name="matplotlib") from error
    return pyplot.subplots(figsize=(8, 4.5), layout="constrained")[1]


def _explain(ax: Any, summary: str) -> None:
    """Add a title of several lines, and between it and the axes a legend of one line."""
    most = max(int(15 * ax.bbox.width / ax.figure.dpi), 20)
    rows = -(-len(summary) // most)
    title = "\n".join(wrap(summary, len(summary) // rows + 8))
    ax.set_title(title, fontsize="small", pad=17)
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "borderaxespad": 0.1, "ncols": 4}
    form = {"columnspacing": 1, "handlelength": 1, "borderpad": 0.2, "frameon": False}
    for handle in ax.legend(fontsize="small", **place, **form).legend_handles:
        handle.set_linewidth(2)
