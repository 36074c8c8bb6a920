"""The memory and evaluations of the plans worth considering, as table and picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from jax_revolve.schedule import cost
from jax_revolve.schedule.arguments import readable
from jax_revolve.schedule.cost import STEPS_IN_A_PRODUCT, Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.selection import trade_off


class Printed:
    """The base class of results that print as text, also in a notebook."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        return f'<pre style="overflow-x: auto; white-space: pre">{escape(str(self))}</pre>'


@dataclass(frozen=True, repr=False)
class Report(Printed):
    """A loop in a [`jax_revolve.typing.Explanation`][]. Prints as a table; sizes are in bytes.

    `name` and `source` say where the loop is, as in [`jax_revolve.typing.FoundLoop`][], and `runs`
    how often the function runs it, at most. A loop of `jax.lax` is not `is_own`. If `is_while`, it
    is a while loop, and its plan is for one that reaches its bound.

    `sizes` are one step's: `checkpoint`, `residuals`, `carry`. `always` is the memory that
    every plan also needs, by name. `plan` is the chosen plan. `choices` are the plans worth
    considering: each has the least predicted time within its memory. If the chosen plan has
    checkpoints in a storage, the others have none there.
    """

    plan: Plan
    sizes: Sizes
    always: dict[str, int]
    is_while: bool
    name: str = ""
    source: str = ""
    runs: int | None = 1
    is_own: bool = True

    @cached_property
    def choices(self) -> list[Plan]:
        plans = trade_off(self.plan.length, self.sizes, is_while=self.is_while)
        if self.sizes.is_walked_back:
            plans = [self.plan]
        chosen = dict.fromkeys((*plans, self.plan))
        return sorted(chosen, key=lambda p: (self.memory(p), -self.evaluations(p)))

    def memory(self, plan: Plan) -> int:
        """The bytes that a plan holds: its checkpoints, the residuals of a block, and a carry."""
        return cost.memory(plan, self.sizes)

    def evaluations(self, plan: Plan) -> int:
        """The evaluations of `jax.value_and_grad` of the loop, up to its bound if it has one."""
        runs = cost.evaluations(plan, is_while=self.is_while)
        if self.sizes.is_walked_back and not self.is_while and plan.block_size > 1:
            # The forward sweep does not tape the last block.
            runs += plan.length - plan.stride * (plan.blocks - 1)
        return runs

    def time(self, plan: Plan) -> float | None:
        """The predicted seconds of a gradient, without what takes as long with any plan; `None` if
        the work of a step is unknown."""
        if self.sizes.work is None:
            return None
        return cost.time(plan, self.sizes, is_while=self.is_while) / 1e9

    def __str__(self) -> str:
        lines = [*self._sizes(), "", *self._table()]
        if self.sizes.work is not None:
            lines.append(f"Predicted by the profile of {self.sizes.profile}.")
        at_most = "at most " if self.is_while else ""
        title = f"A loop of {at_most}{self.plan.length} steps{self._where}."
        return "\n".join([title, *(f"  {line}" if line else "" for line in lines)])

    @property
    def _where(self) -> str:
        """The name of a nested loop."""
        return f": {self.name}" if "/" in self.name else ""

    def _sizes(self) -> Iterator[str]:
        sizes, plan, kept = self.sizes, self.plan, "kept until the step is transposed"
        if sizes.uncut is not None and sizes.uncut > sizes.residuals:
            kept += f"; {readable(sizes.uncut)} if none is recomputed"
        state = f"the restart state, of a carry of {readable(sizes.carry)}"
        rows = [
            ("a checkpoint", sizes.checkpoint, state),
            ("residuals of a step", sizes.residuals, kept),
        ]
        if sizes.journal:
            meaning = "to undo the writes of all steps, and the histories that it undoes"
            rows.append(("the journal", sizes.journal, meaning))
        if sizes.is_walked_back:
            walk = "the residuals of a step; each block is walked back by the inverse"
            rows[1:] = [("a step back", sizes.alone, walk)]
        if sizes.factors:
            meaning = f"factors of weights' cotangents, for at most {STEPS_IN_A_PRODUCT} steps"
            rows.append(("- pulled back", sizes.factors, meaning))
        if sizes.weights:
            meaning = "products, before they are added"
            rows.append(("weight gradients", sizes.weights, meaning))
        if not sizes.is_walked_back and (sizes.factors or sizes.alone != sizes.residuals):
            meaning = "with block size 1: weight gradients are summed in each step"
            rows.append(("- taped alone", sizes.alone, meaning))
        if plan.storage is not None:
            count = plan.segments or plan.checkpoints
            size = plan.storage_bytes(sizes.checkpoint)
            rows.append(("in the storage", size, f"{count} checkpoints in {plan.storage}"))
        rows += [(name, size, "outside the budget") for name, size in self.always.items() if size]
        width = max(len(name) for name, _, _ in rows)
        for name, size, meaning in rows:
            yield f"{name:<{width}}  {readable(size):>8}  {meaning}"

    def _table(self) -> Iterator[str]:
        rows = list(map(self._row, self.choices))
        lines = aligned([list(rows[0]), *(list(row.values()) for row in rows)])
        for plan, line in zip([None, *self.choices], lines, strict=True):
            yield f"{line}  <- chosen" if plan == self.plan else line

    def _row(self, plan: Plan) -> dict[str, str]:
        runs = self.evaluations(plan)
        row = {
            "checkpoints": checkpoints_of(plan),
            "block size": str(plan.block_size),
            "memory": readable(self.memory(plan)),
            "evaluations": str(runs),
            "per step": f"{runs / max(plan.length, 1):.2f}",
        }
        if (time := self.time(plan)) is not None:
            row["predicted"] = f"{1e3 * time:.0f} ms" if time > 0.1 else f"{1e3 * time:.3g} ms"
        if self.plan.segments:
            row |= {"writes": str(plan.writes), "reads": str(plan.reads)}
        return row

    def plot(self, ax: Any = None) -> Any:
        """Evaluations per step over memory: of the choices, and of plans that tape single steps.

        **Arguments:**

        - `ax`: the `matplotlib.axes.Axes` to draw into; by default the axes of a new figure.

        **Returns:**

        The axes. Needs Matplotlib, which `pip install matplotlib` installs.
        """
        return plot_reports([self], ax)

    def _draw(self, ax: Any, plans: Sequence[Plan], **style: Any) -> None:
        memory = [self.memory(plan) for plan in plans]
        runs = [self.evaluations(plan) / max(plan.length, 1) for plan in plans]
        ax.plot(memory, runs, linestyle="-" if len(plans) > 1 else "none", **style)


def plot_reports(reports: Sequence[Report], ax: Any = None) -> Any:
    """The choices of one loop, or of several, in axes, by default new ones."""
    from jax_revolve.schedule.picture import new_axes

    ax = new_axes() if ax is None else ax
    for report in reports:
        star: dict[str, Any] = {"marker": "*", "markersize": 16}
        if len(reports) == 1:
            length, how = report.plan.length, {"is_while": report.is_while}
            single = trade_off(length, report.sizes, block_size=1, **how)
            # Wide, to be seen where the plans that are chosen tape single steps, too.
            wide: dict[str, Any] = {"color": "#BBBBBB", "linewidth": 6, "solid_capstyle": "round"}
            report._draw(ax, single, label="single steps (Revolve)", **wide)
            report._draw(ax, report.choices, color="#0072B2", marker="o", label="any block size")
            report._draw(ax, [report.plan], color="#D55E00", label="chosen", **star)
            ax.set_title(f"Gradient of a loop of {length} steps{report._where}")
        else:
            report._draw(ax, report.choices, marker="o", label=f"{report.name} of {report.source}")
            report._draw(ax, [report.plan], color=ax.lines[-1].get_color(), **star)
    if reports:
        _scale(ax)
        ax.legend()
    ax.set_xlabel("memory of checkpoints and residuals")
    ax.set_ylabel("evaluations per step")
    return ax


def checkpoints_of(plan: Plan) -> str:
    """The checkpoints of a plan as text, such as "5 x 5" for levels."""
    return " x ".join(map(str, plan.levels)) or str(plan.checkpoints)


def aligned(rows: Sequence[Sequence[str]], words: int = 0) -> Iterator[str]:
    """The rows as lines. The first `words` columns are aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(c.ljust(w) if i < words else c.rjust(w) for i, (c, w) in cells).rstrip()


def _scale(ax: Any) -> None:
    """Make both axes logarithmic: evaluations per step range from one to hundreds."""
    from matplotlib import ticker

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.9)
    for axis, formatter in ((ax.xaxis, ticker.EngFormatter("B")), (ax.yaxis, "{x:g}")):
        least, most = axis.get_view_interval()
        marks = (1, 2, 5) if most < 1000 * least else (1,)  # labels must not overlap
        axis.set_major_locator(ticker.LogLocator(subs=marks))
        axis.set_major_formatter(formatter)
        axis.set_minor_locator(ticker.NullLocator())
    ax.grid(color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
