"""Progress reports from the device to the host.

A report is a call of a Python function, and takes as long as thousands of light steps. So a loop
runs in chunks, with a report at the start of each. Inside a chunk the loop is unchanged, because a
test in every step would take longer than all reports. There are about a hundred chunks, or fewer if
the estimate of a step's work says that reports would come faster than a person can read. Without
progress, none of this is traced.

The last report depends on the end of its loop. The order of the others does not matter to the host.
"""

from collections.abc import Callable
from copy import copy
from functools import partial
from math import ceil
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from jax_revolve._compat import is_first_device, vary, varying_axes
from jax_revolve.profiles.in_force import profile_in_force
from jax_revolve.progress.listener import UNKNOWN, listener_of_sweep
from jax_revolve.step.loop import Loop
from jax_revolve.step.work import is_estimated, work_of

T = TypeVar("T")
Number = Any
"""An int or an `int32` scalar."""

REPORTS = 100
"""The most reports of a sweep whose length is known."""

FRACTION = 16
"""In a sweep of unknown length, the next report comes after a sixteenth of the steps so far."""

BETWEEN_REPORTS = 100e6
"""The least time between reports in estimated nanoseconds, that between updates of tqdm. A report
takes up to one hundredth of it."""

LEAST_WORK = 100.0
"""The least time of a step in nanoseconds."""

LARGEST = 2**31 - 1

OVER = LARGEST
"""The step of the next report after the last one."""


class Bar:
    """The bar of one sweep. It does nothing if the loop has no progress."""

    def __init__(self, loop: Loop, sweep: str, total: Number | None) -> None:
        """`total` is the number of steps of the sweep, if it is known at its start."""
        self._listener = listener_of_sweep(loop.progress, sweep)
        self._sweep, self._total = sweep, total
        self._reaches = self._finishes = self.is_shown = self._listener is not None
        if self.is_shown:
            self._set_interval(loop, total)

    def _set_interval(self, loop: Loop, total: Number | None) -> None:
        self._least = 1
        if is_estimated(loop.jaxpr):
            work = work_of(loop.jaxpr, profile_in_force())
            self._least = ceil(BETWEEN_REPORTS / max(work, LEAST_WORK))
        if total is None:
            self._interval = self._least
        elif isinstance(total, int):
            self._reaches = self._least <= total
            self._interval = max(self._least, -(-total // REPORTS))
        else:
            self._interval = jnp.maximum(self._least, 1 + (total - 1) // REPORTS)

    def fori_loop(
        self,
        start: Number,
        stop: Number,
        body: Callable[[Any, T], T],
        state: T,
        *,
        size: int = 1,
        before: Number = 0,
    ) -> T:
        """`lax.fori_loop`, for a part of a sweep of known length. An iteration takes `size` steps,
        and iteration 0 comes after `before` steps.

        When to report depends on the number of steps alone, so the parts of a sweep are
        independent. The end is reported inside the loop, and so before anything that depends on the
        result.
        """
        if not (self._reaches or self._finishes):
            return lax.fori_loop(start, stop, body, state)
        group = -(-self._interval // size)
        first = before if size == 1 else before // size
        ends = jnp.asarray(before + size * stop == self._total, jnp.int32)

        def chunk(chunked: tuple[Any, T]) -> tuple[Any, T]:
            i, state = chunked
            over, past = i == stop, (first + i) % group
            self._report(size * (first + i), (past == 0) & ~over, over)
            end = i + jnp.minimum(stop - i, group - past)
            return end + over.astype(jnp.int32), lax.fori_loop(i, end, body, state)

        start_at = vary_as(jnp.asarray(start, jnp.int32), ends, first, group)
        chunked = (start_at, state)
        return lax.while_loop(lambda chunked: chunked[0] < stop + ends, chunk, chunked)[1]

    def outer_loop(
        self,
        loops: Number,
        body: Callable[["Bar", Any, T], T],
        state: T,
        *,
        size: int,
        before: Callable[[Any], Any],
        ends: bool = True,
    ) -> T:
        """`lax.fori_loop` from 0 to `loops`, for a body that runs loops with the bar that it is
        given. An iteration takes about `size` steps, iteration `i` comes after `before(i)` steps,
        and `ends` says whether the sweep ends with the last iteration.

        Inner loops that are shorter than the time between reports are left unchanged.
        """
        if not self.is_shown or size > self._least:
            return lax.fori_loop(0, loops, partial(body, self), state)
        silent = copy(self)
        silent._reaches = silent._finishes = False
        group = -(-self._interval // size)
        more = jnp.asarray(ends, jnp.int32)

        def chunk(chunked: tuple[Any, T]) -> tuple[Any, T]:
            i, state = chunked
            over = i == loops
            self._report(before(i), ~over, over)
            end = i + jnp.minimum(loops - i, group)
            state = lax.fori_loop(i, end, partial(body, silent), state)
            return end + over.astype(jnp.int32), state

        chunked = (vary_as(jnp.int32(0), loops, group), state)
        return lax.while_loop(lambda chunked: chunked[0] < loops + more, chunk, chunked)[1]

    # Sweeps of unknown length

    def report(self, steps: jax.Array, over: Any) -> jax.Array:
        """Report the number of steps so far, and whether the sweep is over. Returns the step of the
        next report."""
        self._report(steps, ~over, over)
        return self._next(steps)

    def _next(self, steps: jax.Array) -> jax.Array:
        more = jnp.maximum(self._interval, steps // FRACTION)
        return steps + jnp.minimum(more, LARGEST - steps)

    def begin(self, over: Any) -> jax.Array:
        """The step of the first report. A sweep that is over before its first step is reported."""
        self._report(jnp.int32(0), False, over)
        return vary_as(jnp.int32(0), over)

    def report_if_due(self, due: jax.Array, steps: jax.Array, over: Any) -> jax.Array:
        """`report` when it is due, and once at the end. Returns the step of the next report."""
        is_due = steps >= due
        self._report(steps, is_due & ~over, over)
        return jnp.where(over, OVER, jnp.where(is_due, self._next(steps), due))

    def _report(self, steps: Number, reached: Any, over: Any) -> None:
        assert self._listener is not None
        if self._reaches:
            self._call_if(reached, self._listener.reached, steps)
        if self._finishes:
            end = steps if self._total is None else self._total
            self._call_if(over, self._listener.finished, end)

    def _call_if(self, wanted: Any, function: Callable[[str, Any], None], steps: Number) -> None:
        total = UNKNOWN if self._total is None else self._total
        report = jnp.stack([jnp.asarray(n, jnp.int32) for n in (steps, total)])
        wanted, report = _of_one_example(jnp.asarray(wanted), report)
        first = is_first_device()
        lax.cond(
            wanted if first is None else wanted & first,
            partial(jax.debug.callback, partial(function, self._sweep)),
            lambda _: None,
            report,
        )


def vary_as(value: jax.Array, *others: Any) -> jax.Array:
    """The value, typed as varying over every device axis over which one of the others varies."""
    axes = [varying_axes(jax.typeof(jnp.asarray(other))) for other in others]
    return vary(value, frozenset().union(*axes))


@custom_vmap
def _of_one_example(wanted: jax.Array, report: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether to report, and the report. Never batched.

    A loop counts steps for all examples at once. The exception is a while loop in a `cond` that
    `vmap` makes a select, because that selects the numbers of steps, too. Such a loop reports
    nothing.
    """
    return wanted, report


@_of_one_example.def_vmap
def _(axis_size: int, batched: Any, wanted: jax.Array, report: jax.Array) -> Any:
    del axis_size
    if any(batched):
        wanted, report = jnp.bool_(False), jnp.zeros(2, jnp.int32)
    return _of_one_example(wanted, report), (False, False)
