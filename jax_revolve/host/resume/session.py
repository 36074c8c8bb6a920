"""A run and its directory: where the run goes on, and what each state holds."""

from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

from jax_revolve.host.levels import Checkpoint, elsewhere, in_memory, on_device
from jax_revolve.host.placement import Placed, Values, on_host
from jax_revolve.host.resume.fingerprint import Fingerprint, of_arrays
from jax_revolve.host.resume.folder import Folder
from jax_revolve.host.resume.saved_rows import SavedRows
from jax_revolve.host.rows import Arriving
from jax_revolve.host.run import Cotangents, Position, Problem
from jax_revolve.schedule.storage import Disk, HostMemory, Storage
from jax_revolve.step.loop import pick
from jax_revolve.storage.states import ArrayFile


class Session:
    """A run, which begins at the newest state in its directory. A state has

    - the `fingerprint` of the run;
    - `reached`: the steps that the sweep has taken, `position`: where in the plan that is, and the
        checkpoints there, and `ys`: the files with the ys;
    - after the forward sweep, the `final` carry;
    - in the reverse sweep, `given`: the fingerprint of the results' cotangents, and those so far;
    - at the end, `is_over`;
    - `described`: what the step has found out about its results.
    """

    def __init__(self, folder: Folder, fingerprint: Fingerprint, problem: Problem) -> None:
        self._folder, self._states, self._problem = folder, folder.states, problem
        begun = {"fingerprint": fingerprint, "reached": 0, "position": None, "ys": []}
        self._state: dict[str, Any] = folder.newest(fingerprint) or begun
        problem.step.described = self._state.get("described")
        self._carry = Placed.of(problem.operands.carry)
        self._restart = Placed.of(pick(problem.operands.carry, problem.restart))
        self._files: WeakKeyDictionary[Checkpoint, ArrayFile] = WeakKeyDictionary()

    def running(self) -> AbstractContextManager[None]:
        """A sweep runs, and saves."""
        return self._folder.running(self._problem.watch)

    @property
    def reached(self) -> int:
        """The steps that the sweep has taken, which is the reverse sweep if there is a `final`
        carry."""
        return self._state["reached"]

    @property
    def final(self) -> Values | None:
        """The final carry of a run whose forward sweep is over."""
        file = self._state.get("final")
        return None if file is None else self._carry.on_device(self._states.read(file))

    @property
    def position(self) -> Position | None:
        """Where the run goes on; `None` for its beginning."""
        saved = self._state["position"]
        if saved is None:
            return None
        carry, problem = saved["carry"], self._problem
        return Position(
            **saved
            | {
                "carry": carry and self._carry.on_device(self._states.read(carry)),
                "slots": self._checkpoints(saved["slots"], problem.slots),
                "stores": self._checkpoints(saved["stores"], problem.stores),
            }
        )

    def keep(self, storage: Storage | None, values: Values) -> Checkpoint:
        """A checkpoint. One on disk is in a file of the directory, and not written again."""
        if not isinstance(storage, Disk):
            return self._problem.keep(storage, values)
        return self._checkpoint(self._write(values), storage)

    def keep_ys(self, rows: Arriving) -> None:
        """These are the ys."""
        self._ys = SavedRows(self._states, rows, self._entries, self._state["ys"])

    def save_forward(self, position: Position, reached: int) -> None:
        """A state in the forward sweep, after so many steps."""
        self._save(reached=reached, position=self._position(position), ys=self._ys.save(reached))

    def finish_forward(self, position: Position | None, final: Values) -> None:
        """The state after the forward sweep, which is the end if there is no position."""
        self._save(
            reached=0,
            position=position and self._position(position),
            ys=self._ys.save(self._problem.length),
            final=self._write(final),
            is_over=position is None,
        )

    def begin_reverse(self, cotangents: Cotangents) -> bool:
        """Restore the cotangents so far. Returns whether the reverse sweep is over."""
        given = {"cotangents of the results": of_arrays([*cotangents.carry, *cotangents.ys])}
        self._folder.check(self._state.setdefault("given", given), given)
        carry, consts, xs = self._state.get("cotangents", (None, None, []))
        n = self._problem.length
        self._xs = SavedRows(
            self._states,
            cotangents.xs,
            lambda first, last: self._entries(n - last, n - first),
            xs,
        )
        if carry is not None:
            for name, file in (("carry", carry), ("consts", consts)):
                placed = Placed.of(getattr(cotangents, name))
                setattr(cotangents, name, placed.on_device(self._states.read(file)))
        return self._state.get("is_over", False)

    def save_reverse(self, position: Position | None, cotangents: Cotangents, reached: int) -> None:
        """A state in the reverse sweep, after so many steps; the end if there is no position."""
        values = map(self._write, (cotangents.carry, cotangents.consts))
        self._save(
            reached=reached,
            position=position and self._position(position),
            cotangents=[*values, self._xs.save(reached)],
            is_over=position is None,
        )

    def _entries(self, first: int, last: int) -> slice:
        """The entries of the steps from `first` to before `last`."""
        ends = self._problem.entry(first), self._problem.entry(last - 1)
        return slice(min(ends), max(ends) + 1)

    def _save(self, **changed: Any) -> None:
        state = self._state | changed | {"described": self._problem.step.described}
        self._folder.save(state)
        self._state = state

    def _write(self, values: Values) -> ArrayFile:
        return self._states.write(on_host(values))

    def _position(self, position: Position) -> dict[str, Any]:
        """A position, for a state."""
        carry, slots, stores = position.carry, position.slots, position.stores
        return vars(position) | {
            "carry": carry and self._write(carry),
            "slots": {number: self._file_of(kept) for number, kept in slots.items()},
            "stores": {number: self._file_of(kept) for number, kept in stores.items()},
        }

    def _file_of(self, checkpoint: Checkpoint) -> ArrayFile:
        if checkpoint not in self._files:
            self._files[checkpoint] = self._states.write(checkpoint.data)
        return self._files[checkpoint]

    def _checkpoints(
        self, files: dict[str, ArrayFile], storage: Storage | None
    ) -> dict[int, Checkpoint]:
        return {int(number): self._checkpoint(file, storage) for number, file in files.items()}

    def _checkpoint(self, file: ArrayFile, storage: Storage | None) -> Checkpoint:
        """A checkpoint in this storage, of a file of the directory."""
        if isinstance(storage, Disk):
            checkpoint = elsewhere(
                "on disk", file["bytes"], lambda: self._states.read(file), self._restart
            )
        elif isinstance(storage, HostMemory):
            checkpoint = in_memory(self._states.read(file), self._restart)
        else:
            checkpoint = on_device(self._restart.on_device(self._states.read(file)))
        self._files[checkpoint] = file
        return checkpoint
