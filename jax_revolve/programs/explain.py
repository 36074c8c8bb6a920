"""`explain`: the plan, the memory and the evaluations of every loop that a function runs.

It has no model of its own: it traces the gradient, and reads from that what runs (`derivative`).
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jax_revolve._compat.functions import Mask
from jax_revolve._compat.interpreters import filtered_traceback
from jax_revolve._compat.values import pick
from jax_revolve.programs.choice import Choice
from jax_revolve.programs.derivative import Decided, Decisions
from jax_revolve.programs.find import (
    FoundLoop,
    Program,
    Replacements,
    find_differentiated,
    find_not_entered,
    is_in,
    takes_derivatives,
)
from jax_revolve.programs.rewrite import Traced, check_function, inputs_of, trace
from jax_revolve.programs.share import Outlays, around, of_each_step, of_plan, of_program
from jax_revolve.schedule.arguments import called_as, check_integer, counted, readable
from jax_revolve.schedule.report import Printed, Report, aligned, checkpoints_of, plot_reports


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
        with these plans. At most so many if there are while loops.
    - `differentiated`: the arguments with respect to which the gradient is, by name.
    """

    loops: tuple[Report, ...]
    left_alone: tuple[FoundLoop, ...]
    not_entered: dict[str, str]
    memory: int
    memory_now: int
    evaluations: int
    differentiated: str
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
        table = [self._title, *self._table()] if self._rows else ["No loops."]
        lines = [*table, *self._remarks()]
        if len(self._rows) == len(self.loops) == 1:
            lines += ["", str(self.loops[0])]
        return "\n".join(lines)

    @property
    def _title(self) -> str:
        if self._takes_derivatives:
            return "The derivatives that the function takes itself."
        return f"The gradient with respect to {self.differentiated}."

    def _table(self) -> Iterator[str]:
        sizes = ("carry", "journal", "residuals", "jax.lax keeps", "memory")
        titles = ("loop", "from", "steps", "runs", *sizes, "checkpoints", "block size")
        plain = [loop.plain_bytes for loop, _, _ in self._rows if loop.depth == 0]
        kept = "" if None in plain else readable(sum(size or 0 for size in plain))
        total = ["together", "", "", "", "", "", "", kept, readable(self.memory), "", ""]
        rows = [[*titles, "evaluations"], *(self._row(*row) for row in self._rows)]
        at_most = any(report and loop.kind == "while" for loop, report, _ in self._rows)
        evaluations = f"{'<= ' if at_most else ''}{self.evaluations}"
        rows = [*rows, [*total, evaluations]]
        if not any(report.sizes.journal for report in self.loops):
            rows = [[*row[:5], *row[6:]] for row in rows]
        yield from aligned(rows, words=2)

    def _row(self, loop: FoundLoop, report: Report | None, evaluations: int) -> list[str]:
        at_most = "<= " if loop.kind == "while" else ""
        steps = "" if loop.length is None else f"{at_most}{loop.length}"
        runs = "" if loop.runs is None else str(loop.runs)
        carry = readable(report.sizes.carry if report else loop.carry_bytes)
        residuals = readable(report.sizes.residuals if report else loop.residual_bytes)
        plain = "" if loop.plain_bytes is None else readable(loop.plain_bytes)
        journal = readable(report.sizes.journal) if report and report.sizes.journal else ""
        row = [loop.name, loop.source, steps, runs, carry, journal, residuals, plain]
        if report is None:
            alone = "no gradient" if loop.residual_bytes else "keeps nothing"
            alone = alone if loop.is_own else "left alone"
            is_refused = loop.length is None and loop.key in loop.program.alone
            if is_refused:
                alone = "needs max_steps" if loop.bound is None else 'needs max_steps="loop"'
            return [*row, alone, "", "", ""]
        memory, plan = readable(report.memory(report.plan)), report.plan
        outer = (o for o, _, _ in self._rows if is_in(loop.key, o.key))
        is_most = at_most or any(o.kind == "while" for o in outer)
        runs = f"{'<= ' if is_most else ''}{evaluations}"
        return [*row, memory, checkpoints_of(plan), str(plan.block_size), runs]

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
                "The function takes a derivative itself. For the plans of other options, pass the "
                "function that is differentiated."
            )
        for name, reason in self.not_entered.items():
            yield f"The loops in {name} are left alone: {reason}."


@called_as("explain(fun)(x)")
def explain(
    fun: Callable[..., Any], *, argnums: int | Sequence[int] | None = None
) -> Callable[..., Explanation]:
    """Every loop that a function runs, and for each one its plan, memory and evaluations.

    It finds the loops of this library and the loops of `jax.lax`, at any depth. Of a loop of
    `jax.lax`, it shows the plan that [`jax_revolve.checkpoint_loops`][] would give it. To see the
    plans for other options, explain the result: `explain(checkpoint_loops(fun, memory="1GB"))`.

    Nothing runs: the gradient of `fun` is traced, so arguments may be shapes, and `explain` also
    works inside `jax.jit`. If `fun` takes derivatives itself, the report is on the loops that it
    then runs. Sizes are for one device inside `jax.shard_map`, and where types carry the sharding
    (`AxisType.Explicit`); elsewhere they count whole arrays. Of `jax.vmap(jax.grad(f))`, they are
    for one example.

    **Arguments:**

    - `fun`: the function.
    - `argnums`: which positional arguments are differentiated, as in `jax.grad`. By default all
        that can be, Python floats included. Keyword arguments and values that `fun` closes over are
        constants, as for `jax.grad`.

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
            traced, args = _traced(fun, args, kwargs)
            mask, names = _differentiated(fun, traced, argnums, args, kwargs)
            reports: dict[FoundLoop, Report | None] = {}
            alone: Decisions = {}
            if takes := takes_derivatives(traced.closed):
                found = find_differentiated(traced.closed)
                reports = {loop: decided and _report(loop, decided) for loop, decided in found}
            elif traced.loops:
                (program := traced.loops[0].program).mask = mask
                reports = reports_on(program, Choice().replacements(traced.loops)[0])
                alone = program.alone
        evaluations = _evaluations(reports)
        rows = tuple((loop, report, evaluations[loop]) for loop, report in reports.items())
        own = {loop: report if loop.is_own else None for loop, report in reports.items()}
        return Explanation(
            tuple(report for report in reports.values() if report is not None),
            tuple(loop for loop, report in reports.items() if report is None),
            {name: reason for name, reason, *_ in find_not_entered(traced.closed)},
            memory_of(reports, alone),
            memory_of(own, alone),
            sum(runs for _, report, runs in rows if report is not None),
            names,
            rows,
            takes,
        )

    return explained


def _traced(fun: Any, args: Any, kwargs: Any) -> tuple[Traced, Any]:
    """The traced function, and its positional arguments with types for Python floats, which
    `jax.grad` differentiates, unless the function needs numbers there."""
    types = jax.tree.map(_type_of_float, args)
    try:
        return trace(fun, types, kwargs), types
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        return trace(fun, args, kwargs), args


def _type_of_float(x: Any) -> Any:
    if isinstance(x, float | complex) and not hasattr(x, "dtype"):
        return jax.ShapeDtypeStruct((), jax.typeof(x).dtype, weak_type=True)
    return x


def _differentiated(
    fun: Any, traced: Traced, argnums: Any, args: Any, kwargs: Any
) -> tuple[Mask, str]:
    """Which inputs of a program are differentiated, and the names of these arguments."""
    chosen = range(len(args)) if argnums is None else argnums
    chosen = [chosen] if isinstance(chosen, int) else chosen
    allowed = f"an int or several, for {counted(len(args), 'positional argument')}, or None"
    for i in chosen:
        if check_integer("argnums", i, least=-len(args), allowed=allowed) >= len(args):
            raise ValueError(f"argnums must be {allowed}, but is {argnums!r}.")
    chosen = {i % len(args) for i in chosen}
    owners = [i for i, value in enumerate(args) for _ in inputs_of(value)]
    owners += [-1 for _ in inputs_of(kwargs)]  # which `jax.grad` does not differentiate
    consts, inputs = traced.mask[: len(traced.consts)], traced.mask[len(traced.consts) :]
    inputs = tuple(map(min, inputs, [i in chosen for i in owners]))
    names = dict.fromkeys(map(_names_of(fun), pick(owners, inputs)))
    return (*consts, *inputs), ", ".join(names) or "nothing"


def _names_of(fun: Any) -> Callable[[int], str]:
    """The names of positional arguments."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # a function of C
        parameters = ()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return lambda i: names[i] if i < len(names) else f"argument {i}"


def reports_on(program: Program, replacements: Replacements) -> dict[FoundLoop, Report | None]:
    """The report on each loop; `None` if lax runs it, or if it has no reverse mode."""
    decided = program.decided(replacements)
    if all(loop.is_own or (loop.key in replacements and not loop.depth) for loop in program.loops):
        program.alone = decided  # only plans of loops inside change the sizes of a step
    reports = dict[FoundLoop, Report | None]()
    for loop in program.loops:
        is_ours = loop.is_own or loop.key in replacements
        has_gradient = loop.key in decided and not program.has_no_gradient(loop, replacements)
        reports[loop] = _report(loop, decided[loop.key]) if is_ours and has_gradient else None
    return reports


def _report(loop: FoundLoop, decided: Decided) -> Report:
    where = (loop.name, loop.source, loop.runs, loop.is_own)
    return Report(decided.plan, decided.sizes, decided.always, decided.is_while, *where)


def memory_of(reports: Mapping[FoundLoop, Report | None], alone: Decisions) -> int:
    """The bytes that the gradients of all loops hold together. Loops without a report are lax's.
    `alone` is what the loops decide if each loop of lax has one checkpoint."""

    def outlays(loop: FoundLoop, inside: Outlays) -> Outlays:
        # The second outlay is with one checkpoint each: what residuals that were measured so hold.
        (inner, one_each), report = inside[:2], reports[loop]
        measured, is_while = alone.get(loop.key), loop.kind == "while"
        outlay = of_each_step(inner, loop.length or 1)
        if loop.program.mask is None and loop.ends_gradients:
            outlay = replace(outlay, held=0)
        if report is not None:
            outlay = of_plan(report.plan, report.sizes, inner, is_while=is_while)
        elif measured is not None and loop.length is not None and not is_while:
            # The checkpoint of a while loop that has no gradient is not among the residuals.
            of_a_step = max((measured.sizes.uncut or 0) + inner.held - one_each.held, 0)
            outlay = replace(outlay, held=loop.length * of_a_step)
        if measured is not None:
            one_each = of_plan(measured.plan, measured.sizes, one_each, is_while=is_while)
        return [outlay, one_each]

    return of_program(list(reports), outlays)[0].memory


def _evaluations(reports: Mapping[FoundLoop, Report | None]) -> dict[FoundLoop, int]:
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
