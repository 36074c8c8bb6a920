"""Progress: a loop that reports on itself.

A loop that shows progress carries two values more, which are added where the loop is made:

    count, tick = 0, start(zeros, *operands)
    loop:
        tick = report(count, tick)
        count = count + 1
    *results = end(count, tick, *results)

The tick is zero, and has derivatives whenever the loop has: its tangent begins where any operand
has one. At the end, its cotangent is the number of steps. So the transposed program reports in
reverse, and neither the engine nor a rule knows of progress. A recomputed step is `silenced`.

Whether a step reports depends on its number alone. A call takes as long as thousands of light
steps, so a sweep makes about a hundred calls, or fewer if the estimated work of a step says that
they would come faster than a person can read.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.callbacks import callback_effects, is_first_device
from jax_revolve._compat.jaxprs import ClosedJaxpr, Jaxpr, facts_of, with_equations
from jax_revolve._compat.primitives import new_primitive
from jax_revolve._compat.values import (
    ShapedArray,
    instantiate,
    int32,
    is_zero,
    pick,
    substitute,
    vary,
    varying_axes,
    zeros,
)
from jax_revolve.jaxprs.walk import changed, function_of, inner_jaxprs
from jax_revolve.profiles.in_force import profile_in_force
from jax_revolve.progress.meters import FORWARD, REVERSE, UNKNOWN, Listener
from jax_revolve.step.loop import Loop, once, with_carries
from jax_revolve.step.work import is_estimated, work_of
from jax_revolve.storage.buffers import for_all

T = TypeVar("T")

REPORTS = 100
"""The most reports of a sweep whose length is known when traced."""

FRACTION = 16
"""In other sweeps, the next report comes after at most a sixteenth of the steps so far."""

BETWEEN_REPORTS = 100e6
"""The least time between reports, in estimated nanoseconds: tqdm's. A report takes up to one
hundredth of it."""

LEAST_WORK = 100.0
"""The least time of a step in nanoseconds."""

START, STEP, END = "start", "step", "end"


class Report(NamedTuple):
    """The parameter of a report: who hears it, and where in the loop it is."""

    listener: Listener
    place: str
    length: int | None
    least: int
    """The least number of steps between reports."""
    sweep: str | None = FORWARD
    """`None` where the sweep is recomputed."""

    @property
    def is_over(self) -> bool:
        return (self.sweep, self.place) in ((FORWARD, END), (REVERSE, START))

    @property
    def is_made(self) -> bool:
        is_frequent = self.length is None or self.length >= self.least
        return self.is_over or (self.sweep is not None and self.place == STEP and is_frequent)

    @property
    def effects(self) -> frozenset[Any]:
        return callback_effects() if self.is_made else frozenset()

    def kept(self, values: Sequence[T]) -> list[T]:
        """The values that are results. The operands of the loop are there for their tangents."""
        return list(values[:1] if self.place == START else values)

    def is_due(self, steps: jax.Array) -> Any:
        """Whether to report before the next step. In a sweep of unknown length, if the number is
        divisible by the largest power of two up to `steps / FRACTION`."""
        if self.is_over:
            return jnp.bool_(True)
        if self.length is not None:
            spacing = jnp.int32(max(self.least, -(-self.length // REPORTS)))
        else:
            bits, least = 32 - lax.clz(steps), min((self.least - 1).bit_length(), 30)
            spacing = jnp.int32(1) << jnp.maximum(bits - FRACTION.bit_length(), least)
        return lax.rem(steps, spacing) == 0


def _run(count: Any, total: Any, *values: Any, report: Report) -> list[Any]:
    is_step_back = report.sweep == REVERSE and report.place == STEP
    if report.is_made:
        steps = total - 1 - count if is_step_back else count
        hear = partial(report.listener.hear, report.sweep or "", is_over=report.is_over)
        wanted, first = report.is_due(steps), is_first_device()
        wanted = wanted if first is None else wanted & first
        call = partial(jax.debug.callback, hear)
        lax.cond(wanted, call, lambda _: None, jnp.stack([steps, total]))
    tick, *results = report.kept(values)
    # XLA keeps a product of a float with zero, so it cannot know the tick before the last step, and
    # the sweep is not said to be over before.
    return [tick + 0 * count.astype(tick.dtype) if is_step_back else tick, *results]


def _types(count: Any, total: Any, *values: Any, report: Report) -> Any:
    del count, total
    return report.kept(values), report.effects


def _batch(axis: Any, flat: Any, dims: Any, report: Report) -> Any:
    """A bar counts the steps of the longest example. The tick has an axis of examples if anything
    has, by which a step knows how many there are: a batch takes longer, and reports more often."""
    numbers = [x if d is None else jnp.max(x, axis=d) for x, d in zip(flat[:2], dims, strict=False)]
    flat, dims = _with_tick_last(flat[2:], dims[2:])
    if report.place == START and dims[0] is None and len({*dims}) > 1:
        flat, dims = [for_all(axis.size, flat[0], False), *flat[1:]], [0, *dims[1:]]
    if dims[0] is not None:
        report = report._replace(least=-(-report.least // max(axis.size, 1)))
    return report_p.bind(*numbers, *flat, report=report), report.kept(dims)


def _with_tick_last(flat: Any, dims: Any) -> tuple[list[Any], list[int | None]]:
    """The values, where the tick's own axis is the last one, so that the transposed program of a
    batch finds it."""
    tick = flat[0] if dims[0] is None else jnp.moveaxis(flat[0], dims[0], 0)
    return [tick, *flat[1:]], [dims[0] if dims[0] is None else 0, *dims[1:]]


def _jvp(primals: Any, tangents: Any, report: Report) -> Any:
    results, (_, _, tick, *dots) = report_p.bind(*primals, report=report), tangents
    is_given = [not is_zero(dot) for dot in dots]
    is_active = any(is_given) if report.place == START else not is_zero(tick)
    if report.sweep == REVERSE or not is_active:
        return results, report.kept([tick, *dots])
    given = [instantiate(tick), *pick(dots, is_given)]
    tick, *given = tangent_p.bind(primals[0], *given, report=report)
    return results, report.kept([tick, *(substitute(dots, is_given, given) if given else dots)])


def _recomputed(params: dict[str, Any]) -> dict[str, Any]:
    report = params["report"]
    return {"report": report._replace(sweep=None) if report.sweep == FORWARD else report}


report_p = new_primitive(
    "checkpointed_report",
    implementation=_run,
    output_types=_types,
    batch=_batch,
    jvp=_jvp,
    recomputed=_recomputed,
    interpret=None,
)
"""The tick and the results, from the count, the total, the tick and the values at this place."""


def _batch_tangent(axis: Any, flat: Any, dims: Any, report: Report) -> Any:
    del axis
    count = flat[0] if dims[0] is None else jnp.max(flat[0], axis=dims[0])
    flat, dims = _with_tick_last(flat[1:], dims[1:])
    return tangent_p.bind(count, *flat, report=report), report.kept(dims)


def _jvp_of_tangent(primals: Any, tangents: Any, report: Report) -> Any:
    return tangent_p.bind(*primals, report=report), report.kept(tangents[1:])


def _transpose(cotangents: Any, count: Any, *dots: Any, report: Report) -> Any:
    tick, *cts = cotangents
    if report.place == END:
        return [None, instantiate(tick) + _of_total(count), *cts]
    total = _total(tick, UNKNOWN if report.length is None else report.length)
    count = total if report.place == START else count
    (tick,) = report_p.bind(count, total, tick, report=report._replace(sweep=REVERSE))
    return [None, tick, *(None for _ in dots[1:])]


_LOW = 4096


def _of_total(count: jax.Array) -> jax.Array:
    """A number of steps as two floats of single precision."""
    return jnp.stack([count // _LOW, count % _LOW]).astype(jnp.float32)


def _total(tick: jax.Array, known: int) -> jax.Array:
    """The number again, of the longest example, or what is known of it if an inverse was wrong,
    which makes all NaN."""
    high, low = (lax.index_in_dim(tick, i, -1, keepdims=False) for i in range(2))
    total = high.astype(jnp.int32) * _LOW + low.astype(jnp.int32)
    return jnp.max(jnp.where(jnp.isnan(low), known, total))


tangent_p = new_primitive(
    "checkpointed_report_tangent",
    implementation=lambda count, *dots, report: report.kept(dots),
    output_types=lambda count, *dots, report: (report.kept(dots), frozenset()),
    batch=_batch_tangent,
    jvp=_jvp_of_tangent,
    transpose=_transpose,
    interpret=None,
)
"""The tangents of that, from the count and tangents. Transposed, they report in reverse."""


def _reporting(loop: Loop, listener: Listener, start: Sequence[Any]) -> Loop:
    least, length = 1, None if loop.condition is not None else loop.length
    if is_estimated(loop.jaxpr):
        work = work_of(loop.jaxpr, profile_in_force())
        least = ceil(BETWEEN_REPORTS / max(work, LEAST_WORK))
    report, total = Report(listener, STEP, length, least), UNKNOWN if length is None else length

    def step(count: Any, tick: Any) -> list[Any]:
        return [_one_more(count), *report_p.bind(count, jnp.int32(total), tick, report=report)]

    return with_carries(loop, start, step, lambda count, tick: [count - 1, tick])


def _one_more(count: jax.Array) -> jax.Array:
    """The count, which stops at the largest number."""
    return count + (count < jnp.iinfo(jnp.int32).max).astype(jnp.int32)


def run_reporting(
    loop: Loop, operands: Sequence[Any], listener: Listener, run: Callable[[Loop, list[Any]], Any]
) -> tuple[jax.Array, list[Any]]:
    """The number of steps, and the results, of a loop that reports to the listener."""
    condition, is_while = loop.condition, loop.condition is not None
    axes = frozenset() if condition is None else varying_axes(condition.out_avals[0])
    # XLA must not know the last count, or it could report it at any time.
    count = vary(lax.optimization_barrier(int32(0)), axes)
    tick = vary(zeros(ShapedArray((2,), jnp.dtype(jnp.float32))), axes)
    total = int32(UNKNOWN if is_while else loop.steps)
    ends = Report(listener, END, None if is_while else loop.steps, 1)
    (tick,) = report_p.bind(count, total, tick, *operands, report=ends._replace(place=START))
    found = once(loop, ("reporting", listener), lambda: _reporting(loop, listener, [count, tick]))
    consts, carry, xs = loop.operands(operands)
    (*carry, count, tick), ys = found.results(run(found, [*consts, *carry, count, tick, *xs]))
    _, *results = report_p.bind(count, total, tick, *carry, *ys, report=ends)
    return count, results


def silenced(function: Any) -> Any:
    """A loop, or another function of our primitives, for steps that are recomputed: without reports
    of forward sweeps, its own and those of loops in its steps. The same object if it has none."""
    if isinstance(function, ClosedJaxpr):
        known = facts_of(function)
        if silenced not in known:
            known[silenced] = _silent(function)
        return known[silenced]
    if isinstance(function, Jaxpr):
        return _silent(function)
    if not isinstance(function, tuple):
        return function
    fields = list(map(silenced, function))
    if all(a is b for a, b in zip(fields, function, strict=True)):
        return function
    if not hasattr(function, "_fields"):
        return type(function)(fields)
    new = type(function)(*fields)
    if isinstance(new, Loop):
        return new._replace(effects=_without_reports(new.effects, new[:1]))
    return new


def _silent(jaxpr: Any) -> Any:
    def of(eqn: Any) -> Any:
        if eqn.primitive is report_p:
            params = _recomputed(eqn.params)
            return eqn.replace(params=params, effects=params["report"].effects)
        if (function := function_of(eqn)) is not None:
            new = eqn.replace(params={**eqn.params, "function": silenced(function)})
            new = eqn if new.params["function"] is function else new
        else:
            new = changed(eqn, lambda _, inner: silenced(inner))
        if new is eqn:
            return eqn
        return new.replace(effects=_without_reports(new.effects, inner_jaxprs(new)))

    new = list(map(of, jaxpr.eqns))
    if [*map(id, new)] == [*map(id, jaxpr.eqns)]:
        return jaxpr
    return with_equations(jaxpr, new, effects=_without_reports(jaxpr.effects, new))


def _without_reports(effects: Any, parts: Sequence[Any]) -> Any:
    """These effects, without those of callbacks unless a part still has them."""
    kept = (callback_effects() & frozenset(part.effects) for part in parts)
    return (frozenset(effects) - callback_effects()).union(*kept)
