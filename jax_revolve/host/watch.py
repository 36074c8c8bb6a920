"""What happens between two steps: progress, saving, and interrupts."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from jax_revolve.progress.listener import Listener

STEPS_AHEAD = 16
"""The most steps that Python may be ahead of the device."""

SECONDS_AHEAD = 0.1
"""The least time between two reports, and the longest that Python may be ahead."""


class Watch:
    """Looks after a sweep. Between two steps it waits for the device now and then, so that what it
    reports is true, and saves the run if that is due."""

    def __init__(self, listener: Listener | None, save_every: float) -> None:
        """`save_every` is infinite for a run that is not saved."""
        self._listener, self._save_every = listener, save_every
        self._saved = time.monotonic()
        self._is_interrupted = False

    def begin(self, sweep: str, total: int, steps: int, describe: Callable[[], str]) -> None:
        """A sweep of `total` steps begins, or goes on after `steps` of them. `describe` tells more
        about its progress."""
        self._sweep, self._total, self._describe = sweep, total, describe
        self._ahead, self._looked = 0, time.monotonic()
        self._report(0)
        if steps:
            self._report(steps)

    def between_steps(self, steps: int, values: Any, save: Callable[[int], None]) -> None:
        """`steps` steps of the sweep have been taken, the last of which computes `values`."""
        self._ahead += 1
        now = time.monotonic()
        is_due = self._is_interrupted or now - self._saved >= self._save_every
        is_looking = now - self._looked >= SECONDS_AHEAD
        if not (is_due or is_looking or self._ahead >= STEPS_AHEAD):
            return
        jax.block_until_ready(values)
        self._ahead = 0
        if is_looking:
            self._looked = now
            self._report(steps)
        if is_due:
            save(steps)
            self._saved = time.monotonic()
        if self._is_interrupted:
            raise KeyboardInterrupt

    def finish(self) -> None:
        """The sweep is over."""
        if self._listener is not None:
            self._listener.finished(self._sweep, (self._total, self._total))

    def _report(self, steps: int) -> None:
        if self._listener is not None:
            self._listener.reached(self._sweep, (steps, self._total), self._describe())

    @contextmanager
    def interruptible(self, note: str) -> Iterator[None]:
        """The first interrupt from the keyboard waits for the step that runs, and for the run to be
        saved. The second does not."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def interrupt(*arguments: Any) -> None:
            if self._is_interrupted:
                signal.default_int_handler(*arguments)
            self._is_interrupted = True

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        except KeyboardInterrupt as error:
            error.add_note(note)
            raise
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
