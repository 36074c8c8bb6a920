"""`explain`: the plan, the memory and the evaluations of every loop that a function runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jax_revolve._compat.interpreters import filtered_traceback
from jax_revolve.programs.choice import Choice
from jax_revolve.programs.find import (
    FoundLoop,
    Replacements,
    find_not_entered,
    takes_derivatives,
)
from jax_revolve.programs.rewrite import check_function, trace
from jax_revolve.programs.share import Outlays, around, of_each_step, of_plan, of_program
from jax_revolve.schedule.arguments import counted, readable
from jax_revolve.schedule.report import Printed, Report, aligned, checkpoints_of, plot_reports

Reports = Mapping[FoundLoop, Report | None]
"""The report on each loop; `None` if lax runs it, or if it has no reverse mode."""


@dataclass(frozen=True, repr=False)
class Explanation(Printed):
    """The result of [`jax_revolve.explain`][]. Prints as a table; `plot()` draws a picture.

    - `loops`: a [`jax_revolve.typing.Report`][] on each loop that has a plan, in the order in which
        they run. A loop of `jax.lax` has the plan that [`jax_revolve.checkpoint_loops`][] would
        give it.
    - `left_alone`: the other loops, each a [`jax_revolve.typing.FoundLoop`][]: short scans, while
        loops without a bound, and loops without a derivative.
    - `not_entered`: the names of functions and equations whose loops are neither shown nor changed,
        each with the reason, such as a `jax.custom_jvp` or `jax.custom_vjp` rule.
    - `memory`: the bytes that the gradients of all loops hold together with these plans.
    - `memory_now`: as `memory`, of the function as it stands, where loops of `jax.lax` keep the
        residuals of all their steps.
    - `outside`: the bytes outside the budget: xs, ys, closed-over values and their cotangents, as
        far as each loop's `always` lists them, of all loops that are in no other loop.
    - `evaluations`: the evaluations of steps, of all loops together, in a gradient of the function
        with these plans.
    """

    loops: tuple[Report, ...]
    left_alone: tuple[FoundLoop, ...]
    not_entered: dict[str, str]
    memory: int
    memory_now: int
    evaluations: int
    _rows: tuple[tuple[FoundLoop, Report | None, int], ...]
    _takes_derivatives: bool

    @property
    def outside(self) -> int:
        outer = (report for loop, report, _ in self._rows if report and loop.depth == 0)
        return sum(sum(report.always.values()) for report in outer)

    def plot(self, ax: Any = None) -> Any:
        """As `plot` of a [`jax_revolve.typing.Report`][], for all `loops`: the choices of each,
        with a star at its plan. Returns the axes."""
        return plot_reports(self.loops, ax)

    def __repr__(self) -> str:
        loops, bytes = counted(len(self._rows), "loop"), readable(self.memory)
        return f"<Explanation: {loops}, {bytes}, {counted(self.evaluations, 'evaluation')}>"

    def __str__(self) -> str:
        lines = [*(self._table() if self._rows else ["No loops."]), *self._remarks()]
        if len(self._rows) == len(self.loops) == 1:
            lines += ["", str(self.loops[0])]
        return "\n".join(lines)

    def _table(self) -> Iterator[str]:
        sizes = ("carry", "residuals", "jax.lax keeps", "memory")
        titles = ("loop", "from", "steps", "runs", *sizes, "checkpoints", "block size")
        plain = [loop.plain_bytes for loop, _, _ in self._rows if loop.depth == 0]
        kept = "" if None in plain else readable(sum(size or 0 for size in plain))
        total = ["together", "", "", "", "", "", kept, readable(self.memory), "", ""]
        rows = [[*titles, "evaluations"], *(self._row(*row) for row in self._rows)]
        yield from aligned([*rows, [*total, str(self.evaluations)]], words=2)

    def _row(self, loop: FoundLoop, report: Report | None, evaluations: int) -> list[str]:
        at_most = "<= " if loop.kind == "while" else ""
        steps = "" if loop.length is None else f"{at_most}{loop.length}"
        runs = "" if loop.runs is None else str(loop.runs)
        carry = readable(report.sizes.carry if report else loop.carry_bytes)
        residuals = readable(report.sizes.residuals if report else loop.residual_bytes)
        plain = "" if loop.plain_bytes is None else readable(loop.plain_bytes)
        row = [loop.name, loop.source, steps, runs, carry, residuals, plain]
        if report is None:
            alone = "no gradient" if loop.is_own else "left alone"
            return [*row, "needs max_steps" if loop.length is None else alone, "", "", ""]
        memory, plan = readable(report.memory(report.plan)), report.plan
        return [*row, memory, checkpoints_of(plan), str(plan.block_size), str(evaluations)]

    def _remarks(self) -> Iterator[str]:
        of_lax = [loop.name for loop, report, _ in self._rows if report and not loop.is_own]
        if of_lax:
            yield (
                f"Run by jax.lax: {', '.join(of_lax)}. Their plans are the ones that "
                f"checkpoint_loops would give. Without it, all loops together take "
                f"{readable(self.memory_now)}."
            )
        if self.outside:
            yield (
                f"Outside the budget: {readable(self.outside)} for xs, ys, closed-over values and "
                "their cotangents."
            )
        if self._takes_derivatives:
            yield (
                "The function takes a derivative itself, so its loops are hidden or cannot change: "
                "pass the function that is differentiated."
            )
        for name, reason in self.not_entered.items():
            yield f"The loops in {name} are left alone: {reason}."


def explain(fun: Callable[..., Any]) -> Callable[..., Explanation]:
    """Every loop that a function runs, and for each one its plan, memory and evaluations.

    It finds the loops of this library and the loops of `jax.lax`, at any depth. Of a loop of
    `jax.lax`, it shows the plan that [`jax_revolve.checkpoint_loops`][] would give it. To see the
    plans for other options, explain the result: `explain(checkpoint_loops(fun, memory="1GB"))`.

    Nothing runs: `fun` is traced, so arguments may be shapes, and `explain` also works inside
    `jax.jit`. Apply it to the function that is differentiated, not to its gradient. Sizes assume
    that everything differentiable is differentiated; a gradient with respect to less has fewer
    residuals. They are for one device inside `jax.shard_map`, and where types carry the sharding
    (`AxisType.Explicit`); elsewhere they count whole arrays.

    **Arguments:**

    - `fun`: the function.

    **Returns:**

    A function that takes the arguments of `fun`, arrays or `jax.ShapeDtypeStruct`s, and returns an
    [`jax_revolve.typing.Explanation`][]. Printed, it is a table of the loops and their sums; if
    there is one loop, also of every plan worth considering for it, which
    `print(explanation.loops[i])` shows of any loop.

    **Raises:**

    What `fun` raises; `TypeError` if `fun` is no function; `ValueError` if `memory` of a loop is
    less than the least possible.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve import checkpointed_scan, explain

        def step(u, _):
            return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3, None

        def loss(u):
            return jnp.sum(checkpointed_scan(step, u, length=1000, memory="8MB")[0] ** 2)

        explanation = explain(loss)(jax.ShapeDtypeStruct((20000,), jnp.float32))
        print(explanation)
        assert explanation.memory <= 8_000_000
        ```
    """
    check_function(fun)

    @filtered_traceback
    def explained(*args: Any, **kwargs: Any) -> Explanation:
        with jax.disable_jit(False):
            closed, loops, *_ = trace(fun, args, kwargs)
            replacements = Choice().replacements(loops)
            # A loop around a while loop of lax has no gradient, which we show instead of an error.
            refused = {key: r for key, r in replacements.items() if r.plan is None}
            now, then = reports_on(loops, refused), reports_on(loops, replacements)
            shown = {loop: now[loop] if loop.is_own else then[loop] for loop in loops}
        evaluations = _evaluations(shown)
        rows = tuple((loop, report, evaluations[loop]) for loop, report in shown.items())
        return Explanation(
            tuple(report for report in shown.values() if report is not None),
            tuple(loop for loop, report in shown.items() if report is None),
            {name: reason for name, reason, *_ in find_not_entered(closed)},
            memory_of(then, replacements),
            memory_of(now, refused),
            sum(runs for _, report, runs in rows if report is not None),
            rows,
            takes_derivatives(closed),
        )

    return explained


def reports_on(loops: Sequence[FoundLoop], replacements: Replacements) -> Reports:
    return {loop: loop.measure(replacements) for loop in loops}


def memory_of(reports: Reports, replacements: Replacements) -> int:
    """The bytes that the gradients of all loops hold together. Loops without a report are lax's,
    with these replacements inside."""

    def outlays(loop: FoundLoop, inside: Outlays) -> Outlays:
        report, inner = reports[loop], inside[0]
        if report is not None:
            outlay = of_plan(report.plan, report.sizes, inner, is_while=report.is_while)
            return [outlay, outlay]
        outlay = of_each_step(inner, loop.length or 1)
        # The residuals of the outer loop include what an inner loop keeps.
        if loop.depth == 0 and loop.kind == "scan":
            of_a_step = loop.bytes_of_a_step(replacements)
            if loop.length is not None and of_a_step is not None:
                outlay = replace(outlay, held=loop.length * of_a_step)
        return [outlay, outlay]

    return of_program(list(reports), outlays)[0].memory


def _evaluations(reports: Reports) -> dict[FoundLoop, int]:
    """How often each loop's step is evaluated in a gradient of the function. The plan of an outer
    loop determines how often its step is evaluated. Only the last evaluation is differentiated, and
    only there an inner loop follows its own plan."""
    loops, found = {loop.key: loop for loop in reports}, dict[FoundLoop, int]()
    for loop in reports:
        # How often the code around the loop is only evaluated, and how often it is differentiated.
        alone, both = 0, 1
        for key in (*around(loop, loops), loop.key):
            if key not in loops:
                alone += both
                continue
            steps, report = loops[key].length or 1, reports[loops[key]]
            runs = steps if report is None else report.evaluations(report.plan)
            alone, both = alone * steps + both * (runs - steps), both * steps
        found[loop] = alone + both
    return found
