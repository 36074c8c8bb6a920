"""A run and its directory: where the run goes on, and what each state holds."""

import os
from collections.abc import Callable
from typing import Any

from jax_revolve.host.body.compiled import Values
from jax_revolve.host.levels import Placed
from jax_revolve.host.resume.fingerprint import Fingerprint, check, of_arrays
from jax_revolve.host.resume.journal import Journal, SavedRows
from jax_revolve.host.rows import Arriving
from jax_revolve.host.run import Cotangents, Place
from jax_revolve.schedule.storage import Storage
from jax_revolve.storage.states import States

Entries = Callable[[int, int], slice]
"""The entries of the steps from a first to before a last one."""


class Session:
    """A run, which begins at the newest state in its directory. A state has

    - the `fingerprint` of the run;
    - `reached`: the steps that the sweep has taken, `place`: where in the plan that is, and the
        checkpoints there, and `ys`: the files with the ys;
    - after the forward sweep, the `final` carry;
    - in the reverse sweep, `given`: the fingerprint of the results' cotangents, and those so far;
    - at the end, `is_over`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        fingerprint: Fingerprint,
        init: Values,
        restart: tuple[bool, ...],
        entries: Entries,
        length: int,
        describe: Callable[[], Any],
    ) -> None:
        """`describe` is called for what each state says about the `ys`."""
        self._directory, self._length, self._entries = directory, length, entries
        self._describe = describe
        self._states = States(directory)
        self.journal = Journal(self._states, init, restart)
        self._state: dict[str, Any] = {"fingerprint": fingerprint, "reached": 0, "place": None}
        newest = self._states.newest()
        if newest is not None:
            check(newest["fingerprint"], fingerprint, directory)
            self._state = newest

    @property
    def note(self) -> str:
        """What an interrupt says."""
        return (
            f"host_scan saved the run in directory={os.fspath(self._directory)!r}. Call it again "
            "with the same arguments, in this process or another one, to go on."
        )

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
        check(saved, given, self._directory)
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
        self._states.save(state)
        self._state = state
