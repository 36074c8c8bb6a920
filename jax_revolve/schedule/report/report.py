"""The memory and the evaluations of every plan worth considering: as a table and as a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jax_revolve.schedule import cost
from jax_revolve.schedule.arguments import readable
from jax_revolve.schedule.cost import STEPS_IN_A_PRODUCT, Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.report import measured
from jax_revolve.schedule.report.measured import Measurement
from jax_revolve.schedule.report.table import aligned
from jax_revolve.schedule.selection import trade_off
from jax_revolve.schedule.two_level import AnyPlan, TwoLevelPlan


@dataclass(frozen=True)
class Report:
    """A loop in a [`jax_revolve.Explanation`][]. Prints as a table; sizes are in bytes.

    `name` and `source` say where the loop is, as in [`jax_revolve.FoundLoop`][], and `runs` how
    often the function runs it, at most. A loop of `jax.lax` is not `is_own`. If `is_while`, it is a
    while loop, and its plan is for one that reaches its bound.

    `sizes` are one step's: `checkpoint`, `residuals`, `carry`. `always` is the memory that
    every plan needs as well, by name. `plan` is the chosen plan. `choices` are the plans worth
    considering: each has the least predicted time within its memory. If the chosen plan has
    checkpoints in a storage, the others have none there.

    With `measure=True`, `measured` holds a [`jax_revolve.Measurement`][] of each plan that was run,
    and `plan` is the fastest of them. `unmeasured` are the plans for which the limit of seconds,
    or an interrupt, left no time, and `too_large` are those that need more memory than the device
    has.
    """

    plan: AnyPlan
    sizes: Sizes
    always: dict[str, int]
    is_while: bool
    name: str = ""
    source: str = ""
    runs: int | None = 1
    is_own: bool = True
    measured: dict[AnyPlan, Measurement] = field(default_factory=dict)
    unmeasured: list[AnyPlan] = field(default_factory=list)
    too_large: list[AnyPlan] = field(default_factory=list)
    is_interrupted: bool = False

    @cached_property
    def choices(self) -> list[AnyPlan]:
        plans = trade_off(self.plan.length, self.sizes, is_while=self.is_while)
        chosen = {*plans, self.plan, *self.measured}
        return sorted(chosen, key=lambda p: (self.memory(p), -self.evaluations(p)))

    def memory(self, plan: AnyPlan) -> int:
        """The bytes that a plan holds: its checkpoints, the residuals of a block, and a carry."""
        return cost.memory(plan, self.sizes)

    def evaluations(self, plan: AnyPlan) -> int:
        """The evaluations of `jax.value_and_grad` of the loop, up to its bound if it has one."""
        return cost.evaluations(plan, is_while=self.is_while)

    def __str__(self) -> str:
        remarks = [f"  {remark}" for remark in self._remarks()]
        return "\n".join([*self._header(), "", *self._table(), *remarks])

    def _remarks(self) -> Iterator[str]:
        of_all = (self.measured, self.unmeasured, self.too_large, self.is_interrupted)
        yield from measured.remarks(*of_all)
        if self.sizes.work is not None:
            yield f"Predicted by the profile of {self.sizes.profile}."

    def _header(self) -> Iterator[str]:
        at_most = "at most " if self.is_while else ""
        yield f"A loop of {at_most}{self.plan.length} steps{self._where}."
        rows = [
            (
                "a checkpoint",
                self.sizes.checkpoint,
                f"the restart state, of a carry of {readable(self.sizes.carry)}",
            ),
            *self._residuals(),
            *self._stored(),
            *((name, size, "with every plan") for name, size in self.always.items() if size),
        ]
        width = max(len(name) for name, _, _ in rows)
        for name, size, meaning in rows:
            yield f"  {name:<{width}}  {readable(size):>8}  {meaning}"

    @property
    def _where(self) -> str:
        """Where a loop is that is inside something."""
        return f": {self.name}" if "/" in self.name else ""

    def _residuals(self) -> Iterator[tuple[str, int, str]]:
        meaning, uncut = "kept until the step is transposed", self.sizes.uncut
        if uncut is not None and uncut > self.sizes.residuals:
            meaning += f"; {readable(uncut)} without computing any again"
        yield "residuals of a step", self.sizes.residuals, meaning
        if self.sizes.factors:
            meaning = f"factors of weights' cotangents, for at most {STEPS_IN_A_PRODUCT} steps"
            yield "- pulled back", self.sizes.factors, meaning
        if self.sizes.factors or self.sizes.alone != self.sizes.residuals:
            yield (
                "- taped alone",
                self.sizes.alone,
                "with block size 1: weight gradients are summed in each step",
            )

    def _stored(self) -> Iterator[tuple[str, int, str]]:
        plan = self.plan
        if plan.storage is not None:
            count = plan.writes if isinstance(plan, TwoLevelPlan) else plan.checkpoints
            size = plan.storage_bytes(self.sizes.checkpoint)
            yield "in the storage", size, f"{count} checkpoints in {plan.storage}"

    @property
    def _mark(self) -> str:
        if len(self.measured) > 1:
            return "measured quickest"
        return "measured" if self.measured else "chosen"

    def _table(self) -> Iterator[str]:
        titles = ("checkpoints", "block size", "memory", *measured.columns(self.measured))
        titles += ("evaluations", "per step")
        if isinstance(self.plan, TwoLevelPlan):
            titles += ("writes", "reads")
        lines = aligned([titles, *map(self._cells, self.choices)])
        for plan, line in zip([None, *self.choices], lines, strict=True):
            yield f"  {line}" + (f"  <- {self._mark}" if plan == self.plan else "")

    def _cells(self, plan: AnyPlan) -> Sequence[str]:
        runs = self.evaluations(plan)
        per_step = runs / max(plan.length, 1)
        bytes_and_times = (readable(self.memory(plan)), *measured.cells(self.measured, plan))
        cells = (checkpoints_of(plan), str(plan.block_size), *bytes_and_times)
        cells += (str(runs), f"{per_step:.2f}")
        if not isinstance(self.plan, TwoLevelPlan):
            return cells
        transfers = (plan.writes, plan.reads) if isinstance(plan, TwoLevelPlan) else (0, 0)
        return (*cells, *map(str, transfers))

    def plot(self, ax: Any = None) -> Any:
        """Evaluations per step over memory: of the choices, and of the plans that tape single
        steps. If plans are measured, a panel in a corner shows their times and the quartiles.

        **Arguments:**

        - `ax`: the `matplotlib.axes.Axes` to draw into; by default the axes of a new figure.

        **Returns:**

        The axes. Needs Matplotlib, which `pip install matplotlib` installs.
        """
        from jax_revolve.schedule.report.show import new_axes

        ax = new_axes() if ax is None else ax
        single = trade_off(self.plan.length, self.sizes, block_size=1, is_while=self.is_while)
        self._draw(ax, single, color="#999999", marker=".", label="single steps (Revolve)")
        self._draw(ax, self.choices, color="#0072B2", marker="o", label="blocks of steps")
        self._draw(ax, [self.plan], color="#D55E00", marker="*", markersize=16, label=self._mark)
        _scale(ax)
        ax.set_xlabel("memory of checkpoints and residuals")
        ax.set_ylabel("evaluations per step")
        ax.set_title(f"Gradient of a loop of {self.plan.length} steps{self._where}")
        if self.measured:
            measured.draw(ax, self.measured, self.plan)
        ax.legend(loc="lower left" if self.measured else "best")
        return ax

    def _draw(self, ax: Any, plans: Sequence[AnyPlan], **style: Any) -> None:
        memory = [self.memory(plan) for plan in plans]
        runs = [self.evaluations(plan) / max(plan.length, 1) for plan in plans]
        ax.plot(memory, runs, linestyle="-" if len(plans) > 1 else "none", **style)


def checkpoints_of(plan: AnyPlan) -> str:
    """The checkpoints of a plan, "5 x 5" of one with levels."""
    levels = plan.levels if isinstance(plan, Plan) else ()
    return " x ".join(map(str, levels)) or str(plan.checkpoints)


def _scale(ax: Any) -> None:
    """Make both axes logarithmic: with the least memory, a step takes hundreds of evaluations."""
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
