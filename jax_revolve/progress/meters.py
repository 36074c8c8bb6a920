"""Progress meters, the values of `progress=`, and what listens to loops for them."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from threading import Lock
from typing import Any, TypeAlias

import numpy as np

UNKNOWN = -1
"""Stands for a number of steps that is unknown."""

FORWARD = "forward"
REVERSE = "reverse"
"""The sweeps."""

Show: TypeAlias = Callable[[float, str], None]
"""Shows the share of the work done, from 0 to 1, and the current task."""


class ProgressMeter:
    """Shows the progress of loops. Subclass it to show progress in your own way.

    One object serves any number of loops, also at the same time. Threads of JAX call its methods,
    one call at a time, while the loop waits. So methods should be quick, and must not call JAX. If
    a method raises an exception, a warning is issued, and the object shows nothing from then on.
    The loop goes on.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve import checkpointed_scan
        from jax_revolve.typing import ProgressMeter

        class Log(ProgressMeter):
            def start(self, name, total):
                return name

            def update(self, bar, steps):
                print(bar, steps)

            def close(self, bar):
                print(bar, "done")

        log = Log()

        def f(x):
            return checkpointed_scan(lambda x, _: (jnp.sin(x), None), x, length=10, progress=log)[0]

        jax.grad(f)(1.0)
        ```
    """

    def start(self, name: str, total: int | None) -> Any:
        """Begins a bar, and returns any object that stands for it. `name` is `"forward"` or
        `"reverse"`, `total` the number of steps, or `None` if it is unknown before the end."""
        raise NotImplementedError

    def update(self, bar: Any, steps: int) -> None:
        """Shows that `steps` steps have been taken in total. The numbers increase, and the last one
        is exact."""
        raise NotImplementedError

    def note(self, bar: Any, text: str) -> None:
        """Shows a text beside the bar at its next update. Only `host_scan` calls it."""

    def close(self, bar: Any) -> None:
        """Ends the bar of a loop that is over, or that no longer reports."""
        raise NotImplementedError

    @property
    def _listener(self) -> "Listener":
        return vars(self).setdefault("_listener", Listener(self))  # one for all threads


def listener_of(progress: object) -> "Listener | None":
    """The listener for the engines, from the argument `progress` of a loop."""
    if isinstance(progress, ProgressMeter):
        return progress._listener
    if not isinstance(progress, bool):
        raise TypeError(
            "progress must be True, False or a ProgressMeter, "
            f"but is {progress!r} of type {type(progress).__name__}."
        )
    return _default_meter()._listener if progress else None


@cache
def _default_meter() -> ProgressMeter:
    try:
        return TqdmMeter()
    except ImportError as error:
        raise ImportError(
            "progress must be False or a ProgressMeter where tqdm is not installed, but is True. "
            "Install it with pip install tqdm."
        ) from error


def tqdm_bars() -> Any:
    """The class of tqdm's bars. `ImportError` if tqdm is not installed."""
    with warnings.catch_warnings():
        # In a notebook without widgets, tqdm warns that it falls back to text.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    return tqdm


@contextmanager
def share_bar() -> Iterator[Show]:
    """A bar of tqdm for work that tells which share of it is done, if tqdm is installed."""
    try:
        bars = tqdm_bars()
    except ImportError:
        yield lambda share, now: None
        return
    with bars(total=100, bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}") as bar:

        def show(share: float, now: str) -> None:
            bar.update(100 * share - bar.n)
            if bar.desc != now:
                bar.set_description_str(now)

        yield show


class TqdmMeter(ProgressMeter):
    """Bars of tqdm, in a terminal or as widgets in a notebook. tqdm must be installed."""

    def __init__(self) -> None:
        self._tqdm = tqdm_bars()

    def start(self, name: str, total: int | None) -> Any:
        return self._tqdm(total=total, desc=name, unit=" steps")

    def update(self, bar: Any, steps: int) -> None:
        bar.update(steps - bar.n)

    def note(self, bar: Any, text: str) -> None:
        bar.set_postfix_str(text, refresh=False)

    def close(self, bar: Any) -> None:
        bar.close()


@dataclass
class _RunningSweep:
    """A running sweep, with the times when it `began` (0 if unreported) and was last `heard`."""

    bar: Any
    began: int
    heard: int
    steps: int = 0


@dataclass(eq=False)
class Listener:
    """Receives the reports of loops, sorts them by run, and calls the meter. A loop has it as a
    static value: equal listeners make equal programs.

    A report cannot identify its run: a program may run many times at once, and under `vmap` or
    `jax.checkpoint` the host cannot send an identifier to it. But equal sweeps, over the same
    number of steps, report the same numbers. So a report belongs to the run closest before it;
    among several such runs, any will do. A run that failed sends no more reports, and is closed
    with the next equal run that began after its last report.

    An exception here would fail the loop, so a meter that raises one is not called again.
    """

    meter: ProgressMeter
    _is_given_up: bool = False
    _runs: dict[tuple[str, int], list[_RunningSweep]] = field(default_factory=dict)
    _lock: Any = field(default_factory=Lock)
    _clock: Any = field(default_factory=count)

    def hear(self, sweep: str, report: Any, note: str = "", *, is_over: bool = False) -> None:
        """A sweep begins (with no step taken), goes on, or is over, perhaps in its first report.

        `report` holds two integers: the number of steps that the sweep has taken, and the number
        that it takes in total, or `UNKNOWN`. The last report of a reverse sweep holds `UNKNOWN`
        twice if all cotangents are NaN. A note is shown beside the bar.
        """
        steps, total = np.asarray(report).tolist()
        with self._lock:
            if self._is_given_up or steps == UNKNOWN:
                return
            try:
                self._sort(sweep, steps, total, note, is_over)
            except Exception as error:
                self._is_given_up = True
                self._runs.clear()
                message = (
                    f"The progress meter {type(self.meter).__name__} raised "
                    f"{type(error).__name__}: {error}. It shows nothing from now on; results are "
                    "not affected."
                )
                try:  # a warning that is no exception, under any filters
                    warnings.warn(message, RuntimeWarning, stacklevel=2)
                except RuntimeWarning:
                    print(message, file=sys.stderr)

    def _sort(self, sweep: str, steps: int, total: int, note: str, is_over: bool) -> None:
        runs = self._runs.setdefault((sweep, total), [])
        before = [run for run in runs if run.steps < steps + is_over]
        begins, now = steps == 0 and not is_over, next(self._clock)
        if before:
            run = max(before, key=lambda run: (run.steps, run.heard))
        elif not begins and not is_over:
            return  # a report that a later one has overtaken, perhaps the last
        else:
            bar = self.meter.start(sweep, None if total == UNKNOWN else total)
            run = _RunningSweep(bar, now if begins else 0, now)
            runs.append(run)
        if begins:
            return
        run.steps, run.heard = steps, now
        if note:
            self.meter.note(run.bar, note)
        self.meter.update(run.bar, steps)
        if is_over:
            for other in [r for r in runs if r is run or r.heard < run.began]:
                runs.remove(other)
                self.meter.close(other.bar)
