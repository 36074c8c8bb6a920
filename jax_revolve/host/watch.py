"""Work between two steps: progress, saving, interrupts, and agreement between processes."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_revolve.host.arrays import moved
from jax_revolve.progress.meters import Listener

STEPS_AHEAD = 16
"""The most steps that Python may be ahead of the device."""

SECONDS_AHEAD = 0.1
"""The least time between two reports, and the longest that Python may be ahead."""


class Processes:
    """The processes whose devices hold the operands of a loop, which run it together."""

    def __init__(self, operands: Iterable[Any]) -> None:
        arrays = [x for x in operands if isinstance(x, jax.Array) and not x.is_fully_addressable]
        devices = set[Any]().union(*(x.sharding.device_set for x in arrays))
        self._devices = sorted(devices, key=lambda device: (device.process_index, device.id))
        ranks = [device.process_index for device in self._devices]
        self._first = [i for i, rank in enumerate(ranks) if rank not in ranks[:i]]
        self.count = max(len(self._first), 1)
        self.index = len({rank for rank in ranks if rank < jax.process_index()})

    def gather(self, *numbers: int) -> np.ndarray:
        """The numbers of all processes, in rows, once all of them have called this."""
        row = np.array([numbers], np.int32)
        if self.count == 1:
            return row
        mesh = Mesh(np.array(self._devices), ("device",))
        each, same = (NamedSharding(mesh, PartitionSpec(axis)) for axis in ("device", None))
        shape = (len(self._devices), len(numbers))
        rows = jax.make_array_from_callback(shape, each, lambda _: row)
        return np.asarray(moved(same)(rows))[self._first]


class Watch:
    """Waits for the device at times, so that reports are true, and saves the run when due."""

    def __init__(self, listener: Listener | None, save_every: float) -> None:
        """`save_every` is infinite for a run that is not saved."""
        self._listener, self._save_every = listener, save_every
        self._saved = time.monotonic()
        self._processes, self._is_interrupted, self._note = Processes(()), False, ""

    def begin(self, sweep: str, total: int, steps: int, describe: Callable[[], str]) -> None:
        """Begin a sweep of `total` steps, or resume it after `steps`. `describe` adds a note."""
        self._sweep, self._total, self._describe = sweep, total, describe
        self._ahead, self._looked = 0, time.monotonic()
        for reached in sorted({0, steps}):
            self._report(reached)

    def between_steps(self, steps: int, values: Any, save: Callable[[], None]) -> None:
        """To be called after each step: number `steps` of the sweep, which computes `values`."""
        self._ahead += 1
        now = time.monotonic()
        is_due = self._is_interrupted or now - self._saved >= self._save_every
        # Processes decide together whether to save, and whether to stop after that.
        found = self._processes.gather(is_due, self._is_interrupted)
        is_due, is_last = map(np.any, found.T)
        is_looking = now - self._looked >= SECONDS_AHEAD
        if not (is_due or is_looking or self._ahead >= STEPS_AHEAD):
            return
        jax.block_until_ready(values)
        self._ahead = 0
        if is_looking:
            self._looked = now
            self._report(steps)
        if is_due:
            save()
            self._saved = time.monotonic()
        if is_last:
            raise self._interrupt()

    def finish(self) -> None:
        if self._listener is not None:
            self._listener.hear(self._sweep, (self._total, self._total), is_over=True)

    def _report(self, steps: int) -> None:
        if self._listener is not None:
            self._listener.hear(self._sweep, (steps, self._total), self._describe())

    @contextmanager
    def interruptible(self, processes: Processes, note: str) -> Iterator[None]:
        """Delay the first keyboard interrupt until the current step is done and all processes have
        saved the run. The second interrupt takes effect at once."""
        self._processes, self._note, self._is_interrupted = processes, note, False
        is_main = threading.current_thread() is threading.main_thread()
        is_default = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler

        def interrupt(*arguments: Any) -> None:
            if self._is_interrupted:
                signal.default_int_handler(*arguments)
            self._is_interrupted = True

        if is_default:
            signal.signal(signal.SIGINT, interrupt)
        try:
            yield
            is_interrupted = processes.gather(self._is_interrupted).any()
        finally:
            if is_default:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if is_interrupted or self._is_interrupted:
            raise self._interrupt()

    def _interrupt(self) -> KeyboardInterrupt:
        """The interrupt of a saved run."""
        interrupt = KeyboardInterrupt()
        interrupt.add_note(self._note)
        return interrupt
