"""The result of `explain_loops`, as a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from jax_revolve.programs.find import FoundLoop
from jax_revolve.programs.location import Key, Replacement
from jax_revolve.programs.nests import Nests
from jax_revolve.programs.share import Outlays, of_each_step, of_plan
from jax_revolve.schedule.arguments import readable
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.report.report import Report
from jax_revolve.schedule.report.table import aligned


@dataclass(frozen=True)
class LoopsReport:
    """The result of [`jax_revolve.explain_loops`][]. Prints as a table.

    - `loops`: for each loop, in the order in which they run, the [`jax_revolve.Report`][] on its
        replacement; `None` if it is left alone, or has no reverse mode.
    - `rules`: the names of functions that run loops but are left alone, because they have a
        `jax.custom_jvp` or `jax.custom_vjp` rule.
    """

    loops: Mapping[FoundLoop, Report | None]
    rules: Sequence[str]
    _replacements: Mapping[Key, Replacement] = field(repr=False)

    @cached_property
    def memory(self) -> int:
        """The bytes that the gradients of all loops take together, including loops that are left
        alone."""
        return Nests(list(self.loops)).outlays(self._outlays).least.memory

    def _outlays(self, loop: FoundLoop, inside: Outlays) -> Outlays:
        report, inner = self.loops[loop], inside.least
        if report is None:
            outlay = of_each_step(inner, loop.length or 1)
            # What an inner loop keeps is among the residuals of the outer loop.
            kept = self._bytes_left_alone(loop) if loop.depth == 0 else None
            outlay = outlay if kept is None else replace(outlay, held=kept)
        else:
            plan, online = report.plan, report.is_while
            assert isinstance(plan, Plan)
            outlay = of_plan(plan, report.sizes, inner, is_while=online)
        return Outlays(outlay, outlay)

    def _bytes_left_alone(self, loop: FoundLoop) -> int | None:
        """The bytes that the gradient of `jax.lax`'s loop keeps, with its inner loops replaced;
        `None` if it has no gradient."""
        if loop.length is None:
            return None
        of_a_step = loop.bytes_of_a_step(self._replacements)
        return None if of_a_step is None else loop.length * of_a_step

    def __str__(self) -> str:
        return "\n".join(
            [*(self._table() if self.loops else ["No loops of jax.lax."]), *self._left_alone()]
        )

    def _table(self) -> Iterator[str]:
        titles = ("loop", "from", "steps", *_BYTES, "checkpoints", "block size")
        rows = [titles, *(self._row(*item) for item in self.loops.items()), self._total()]
        yield from aligned(rows, words=2)

    def _row(self, loop: FoundLoop, report: Report | None) -> tuple[str, ...]:
        before = "" if loop.plain_bytes is None else readable(loop.plain_bytes)
        if report is None:
            length = "" if loop.length is None else str(loop.length)
            return loop.name, loop.source, length, before, self._unchanged(loop), "", ""
        plan = report.plan
        length = f"<= {plan.length}" if loop.length is None else str(plan.length)
        after = readable(report.memory(plan))
        chosen = (str(plan.checkpoints), str(plan.block_size))
        return loop.name, loop.source, length, before, after, *chosen

    def _unchanged(self, loop: FoundLoop) -> str:
        if loop.length is None:
            return "needs max_steps" if loop.key in self._replacements else "as before"
        size = self._bytes_left_alone(loop)
        return "as before" if size is None or size == loop.plain_bytes else readable(size)

    def _total(self) -> tuple[str, ...]:
        sizes = [loop.plain_bytes for loop in self.loops if loop.depth == 0]
        before = "" if None in sizes else readable(sum(size or 0 for size in sizes))
        after = readable(self.memory) if self.memory else ""
        return "together", "", "", before, after, "", ""

    def _left_alone(self) -> Iterator[str]:
        if any(loop.is_of_a_gradient for loop in self.loops):
            yield (
                "The function takes a gradient itself, whose memory stays as it is: apply "
                "checkpoint_loops to the function that is differentiated, inside of jax.grad."
            )
        names = ", ".join(self.rules)
        if len(self.rules) == 1:
            yield f"A function with a derivative rule of its own is left alone: {names}."
        elif self.rules:
            yield (
                f"{len(self.rules)} functions with derivative rules of their own are left alone: "
                f"{names}."
            )


_BYTES = ("bytes before, at most", "bytes after")


def report_on(
    loops: Sequence[FoundLoop], replacements: Mapping[Key, Replacement], rules: Sequence[str]
) -> LoopsReport:
    """The report on these loops, given their replacements."""
    reports = {
        loop: loop.measure(replacements, own)
        if (own := replacements.get(loop.key)) is not None and own.plan is not None
        else None
        for loop in loops
    }
    return LoopsReport(reports, rules, replacements)
