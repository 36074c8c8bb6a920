"""A run and its directory: where the run goes on, and what each state holds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jax_revolve.host.placement import Placed, Values
from jax_revolve.host.processes import Processes
from jax_revolve.host.resume.fingerprint import Fingerprint, check, of_arrays
from jax_revolve.host.resume.journal import Journal, SavedRows
from jax_revolve.host.rows import Arriving
from jax_revolve.host.run import Cotangents, Place
from jax_revolve.host.watch import Watch
from jax_revolve.schedule.storage import Storage
from jax_revolve.storage.states import DamagedError, States

Entries = Callable[[int, int], slice]
"""The entries of the steps from a first to before a last one."""


class Session:
    """A run, which begins at the newest state in its directory. Each process has a folder of its
    own there, and all begin at the newest state that all of them have. A process writes a state
    once all have written the one before, so the two that it keeps are enough. A state has

    - the `fingerprint` of the run;
    - `reached`: the steps that the sweep has taken, `place`: where in the plan that is, and the
        checkpoints there, and `ys`: the files with the ys;
    - after the forward sweep, the `final` carry;
    - in the reverse sweep, `given`: the fingerprint of the results' cotangents, and those so far;
    - at the end, `is_over`.
    """

    def __init__(
        self,
        directory: Path,
        processes: Processes,
        fingerprint: Fingerprint,
        init: Values,
        restart: tuple[bool, ...],
        entries: Entries,
        length: int,
        describe: Callable[[], Any],
    ) -> None:
        """`describe` is called for what each state says about the `ys`."""
        self._directory, self._length, self._entries = directory, length, entries
        self._processes, self._describe = processes, describe
        directory.mkdir(exist_ok=True)
        self._states = States(directory / f"process-{processes.index}")
        self.journal = Journal(self._states, init, restart)
        self._state: dict[str, Any] = {"fingerprint": fingerprint, "reached": 0, "place": None}
        self._lock()
        newest = self._newest()
        if newest:
            saved = self._states.read_state(newest)
            check(saved["fingerprint"], fingerprint, directory, processes)
            self._states.go_on(newest, saved)
            self._state = saved
        if self._state.get("is_over"):
            self._states.unlock()

    def _lock(self) -> None:
        try:
            self._states.lock()
        except BlockingIOError as error:
            raise RuntimeError(
                f"directory={str(self._directory)!r} is used by another process. Wait until it has "
                "ended, or pass another directory."
            ) from error

    def _newest(self) -> int:
        """The number of the newest state of all processes; 0 if there is none."""
        newest = self._states.newest()
        found = self._processes.gather(newest)
        common = int(found.min())
        is_lost = common < 0 or (common == 0 and found.max() > 1)
        has_common = common in (0, newest) or self._states.is_whole(common)
        if is_lost or not self._processes.gather(has_common).all():
            raise DamagedError(
                f"Every state in the directory {self._directory} is damaged, or missing in one of "
                "its processes. Nothing was changed. Remove the directory, or pass another one, to "
                "begin again."
            )
        return common

    @contextmanager
    def running(self, watch: Watch) -> Iterator[None]:
        """A sweep runs. If it ends early, another process may go on."""
        note = (
            f"host_scan saved the run in directory={str(self._directory)!r}. Call it again with "
            "the same arguments, in this process or another one, to go on."
        )
        self._lock()
        try:
            with watch.interruptible(self._processes, note):
                yield
        except BaseException:
            self._states.unlock()
            raise

    @property
    def reached(self) -> int:
        """The steps that the sweep has taken, which is the reverse sweep if there is a `final`
        carry."""
        return self._state["reached"]

    @property
    def final(self) -> Values | None:
        """The final carry of a run whose forward sweep is over."""
        part = self._state.get("final")
        return None if part is None else self.journal.carry(part)

    @property
    def described(self) -> Any:
        """What the state says about the ys."""
        return self._state.get("described")

    def place(self, slots: Storage | None, stores: Storage | None) -> Place | None:
        """Where the run goes on; `None` for its beginning."""
        place = self._state["place"]
        return None if place is None else self.journal.restored_place(place, slots, stores)

    def keep_ys(self, rows: Arriving, types: Values | None) -> None:
        """These are the ys, of these types or those of the arrays in the files."""
        self._ys = SavedRows(self._states, rows, self._entries)
        self._ys.restore(self._state.get("ys", []), types)

    def save_forward(self, place: Place, reached: int) -> None:
        """A state in the forward sweep, after so many steps."""
        self._save(reached=reached, place=self.journal.place(place), ys=self._ys.save(reached))

    def finish_forward(self, place: Place | None, final: Values) -> None:
        """The state after the forward sweep, which is the end if there is no place."""
        self._save(
            reached=0,
            place=None if place is None else self.journal.place(place),
            ys=self._ys.save(self._length),
            final=self.journal.values(final),
            is_over=place is None,
        )

    def begin_reverse(self, cotangents: Cotangents) -> bool:
        """Restore the cotangents so far. Returns whether the reverse sweep is over."""
        given = {"cotangents of the results": of_arrays([*cotangents.carry, *cotangents.ys])}
        saved = self._state.setdefault("given", given)
        check(saved, given, self._directory, self._processes)
        self._xs = SavedRows(
            self._states,
            cotangents.xs,
            lambda first, last: self._entries(self._length - last, self._length - first),
        )
        if "cotangents" in self._state:
            carry, consts, xs = self._state["cotangents"]
            places = Placed.of(cotangents.carry), Placed.of(cotangents.consts)
            cotangents.carry, cotangents.consts = (
                placed.on_device(self._states.read(part))
                for placed, part in zip(places, (carry, consts), strict=True)
            )
            self._xs.restore(xs, None)
        return self._state.get("is_over", False)

    def save_reverse(self, place: Place, cotangents: Cotangents, reached: int) -> None:
        """A state in the reverse sweep, after so many steps."""
        self._save(
            reached=reached,
            place=self.journal.place(place),
            cotangents=self._cotangents(cotangents, reached),
        )

    def finish_reverse(self, cotangents: Cotangents) -> None:
        """The state at the end."""
        found = self._cotangents(cotangents, self._length)
        self._save(reached=self._length, place=None, cotangents=found, is_over=True)

    def _cotangents(self, cotangents: Cotangents, reached: int) -> list[Any]:
        values = map(self.journal.values, (cotangents.carry, cotangents.consts))
        return [*values, list(self._xs.save(reached))]

    def _save(self, **changed: Any) -> None:
        state = {**self._state, **changed, "described": self._describe()}
        self._processes.gather(0)  # all have written the state before
        self._states.save(state)
        self._state = state
        if state.get("is_over"):
            self._states.unlock()
