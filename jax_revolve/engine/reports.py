"""Reports of a sweep's progress, from the device to the host.

    if step % spacing == 0: call the listener       # in each step; about 0.1 microseconds on a CPU

Whether a step reports depends on its number alone, so the parts of a sweep need no common counter.
A call takes as long as thousands of light steps. So a sweep makes about a hundred calls, or fewer
if the estimated work of a step says that they would come faster than a person can read. Without
progress, nothing of this is traced.
"""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from jax_revolve._compat.callbacks import is_first_device
from jax_revolve._compat.values import vary, varying_axes
from jax_revolve.profiles.in_force import profile_in_force
from jax_revolve.progress.listener import REVERSE, UNKNOWN, Listener, ReverseOnly
from jax_revolve.step.loop import Loop
from jax_revolve.step.steps import for_loop
from jax_revolve.step.work import is_estimated, work_of

T = TypeVar("T")
Int = Any
"""An int or an `int32` scalar."""

REPORTS = 100
"""The most reports of a sweep whose length is known when traced."""

FRACTION = 16
"""In other sweeps, the next report comes after at most a sixteenth of the steps so far."""

BETWEEN_REPORTS = 100e6
"""The least time between reports, in estimated nanoseconds: tqdm's. A report takes up to one
hundredth of it."""

LEAST_WORK = 100.0
"""The least time of a step in nanoseconds."""


class Reports:
    """The reports of one sweep; none if the loop shows no progress."""

    def __init__(self, loop: Loop, sweep: str, total: Int | None) -> None:
        """`total` is the number of steps of the sweep, if known at its start."""
        progress = loop.progress
        if isinstance(progress, ReverseOnly):
            progress = progress.listener if sweep == REVERSE else None
        self._listener: Listener | None = progress
        self._sweep, self._total, self._least = sweep, total, 1
        self.are_shown = self._listener is not None
        if self.are_shown and is_estimated(loop.jaxpr):
            work = work_of(loop.jaxpr, profile_in_force())
            self._least = ceil(BETWEEN_REPORTS / max(work, LEAST_WORK))

    def before_step(self, steps: Int) -> None:
        """In the body of a loop, report the number of steps so far, if a report is due."""
        is_short = isinstance(self._total, int) and self._total < self._least
        if self.are_shown and not is_short:
            self._report_if(lax.rem(steps, self._spacing(steps)) == 0, steps)

    def _spacing(self, steps: Int) -> jax.Array:
        """The steps between reports. In a sweep of unknown length, the largest power of two up to
        `steps / FRACTION`."""
        if isinstance(self._total, int):
            return jnp.int32(max(self._least, -(-self._total // REPORTS)))
        bits_of_steps = 32 - lax.clz(jnp.asarray(steps, jnp.int32))
        least = min((self._least - 1).bit_length(), 30)
        return jnp.int32(1) << jnp.maximum(bits_of_steps - FRACTION.bit_length(), least)

    def begin(self, numbers: jax.Array) -> jax.Array:
        """The counters of the sweep, hidden from XLA: if it knew their final values, it could
        report the end at any time, even before the beginning."""
        return lax.optimization_barrier(numbers) if self.are_shown else numbers

    def end(self, steps: Int) -> None:
        """Report that the sweep is over. `steps` must depend on its end, so it cannot be early."""
        if self.are_shown:
            self._report_if(True, steps, is_over=True)

    def loop(self, is_last: bool) -> Callable[..., Any]:
        """`lax.fori_loop`, after which the sweep is over if it `is_last`."""
        return self._last_loop if is_last and self.are_shown else for_loop

    def _last_loop(self, start: Int, stop: Int, body: Callable[[Any, T], T], state: T) -> T:
        stop = self.begin(jnp.asarray(stop, jnp.int32))
        total = jnp.asarray(self._total, jnp.int32)
        axes = varying_axes(jax.typeof(total))
        start = vary(jnp.asarray(start, jnp.int32), axes | varying_axes(jax.typeof(stop)))

        def step(counted: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
            i, state = counted
            return i + 1, body(i, state)

        i, state = lax.while_loop(lambda counted: counted[0] < stop, step, (start, state))
        self.end(lax.select(i < stop, i, vary(total, varying_axes(jax.typeof(i)))))
        return state

    def _report_if(self, wanted: Any, steps: Int, *, is_over: bool = False) -> None:
        assert self._listener is not None
        hear = partial(self._listener.hear, self._sweep, is_over=is_over)
        total = UNKNOWN if self._total is None else self._total
        report = jnp.stack([jnp.asarray(n, jnp.int32) for n in (steps, total)])
        wanted, report = _of_one_example(jnp.asarray(wanted), report)
        first = is_first_device()
        wanted = wanted if first is None else wanted & first
        lax.cond(wanted, partial(jax.debug.callback, hear), lambda _: None, report)


@custom_vmap
def _of_one_example(wanted: jax.Array, report: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether to report, and the report. Never batched: a loop counts steps for all examples at
    once. Only a while loop in a `cond` that `vmap` turns into a select has batched counters. Such a
    loop reports nothing."""
    return wanted, report


@_of_one_example.def_vmap
def _(axis_size: int, batched: Any, wanted: jax.Array, report: jax.Array) -> Any:
    del axis_size
    if any(batched):
        wanted, report = jnp.bool_(False), jnp.zeros(2, jnp.int32)
    return _of_one_example(wanted, report), (False, False)
