"""The directory of a run that can be resumed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from jax_revolve.host.fingerprint import Fingerprint, of_operands
from jax_revolve.host.levels import Checkpoint, keep, on_disk
from jax_revolve.host.placement import Placed, Values, on_host
from jax_revolve.host.processes import Processes
from jax_revolve.host.rows import Arriving, Rows
from jax_revolve.host.run import Cotangents, ForwardOnly, Position, Problem
from jax_revolve.host.watch import Watch
from jax_revolve.schedule.actions import SCHEDULE
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import Disk, HostMemory, Storage
from jax_revolve.schedule.two_level import TwoLevelPlan
from jax_revolve.step.loop import pick
from jax_revolve.storage.states import ArrayFile, DamagedError, States

RowFiles = list[tuple[int, int, ArrayFile]]
"""The rows of the steps of a sweep from a first to before a last one."""

_PLANS: dict[str, Any] = {kind.__name__: kind for kind in (ForwardOnly, Plan, TwoLevelPlan)}
_STORAGES: dict[str, Any] = {kind.__name__: kind for kind in (HostMemory, Disk)}


class RunDirectory:
    """The directory of a run, which goes on at the newest state there. A state has

    - the `fingerprint` of the run;
    - the `plan`, and the version of the schedule by which the plan's actions are counted;
    - `reached`: the steps that the sweep has taken, `position`: where in the plan that is, and the
        checkpoints there, and `ys`: the files with the ys;
    - after the forward sweep, the `final` carry;
    - in the reverse sweep, `given`: the fingerprint of the results' cotangents, and those so far;
    - at the end, `is_over`.

    All processes of a run use states of the same number. A process writes a state once all of them
    have written the one before. So the newest states of two processes are at most one apart, and
    the two that each of them keeps are enough.
    """

    def __init__(self, path: Path, fingerprint: Fingerprint, processes: Processes) -> None:
        self._path, self._fingerprint, self._processes = path, fingerprint, processes
        path.mkdir(exist_ok=True)
        self._states = States(path / f"process-{processes.index}")
        self._state: dict[str, Any] = {}
        self._files: WeakKeyDictionary[Checkpoint, ArrayFile] = WeakKeyDictionary()

    @contextmanager
    def running(self, watch: Watch) -> Iterator[bool]:
        """A sweep runs, which no other call does meanwhile. If it ends early, another process may
        go on. Yields whether what this object knows of the run was still the newest state."""
        try:
            one_at_a_time = self._states.lock().running
        except BlockingIOError as error:
            raise self._used("process") from error
        if not one_at_a_time.acquire(blocking=False):
            self._states.unlock()
            raise self._used("call in this process")
        note = (
            f"host_scan saved the run in directory={str(self._path)!r}. Call it again with the "
            "same arguments, in this process or another one, to go on."
        )
        try:
            with watch.interruptible(self._processes, note):
                yield self._is_known()
        except BaseException:
            self._states.unlock()
            raise
        finally:
            one_at_a_time.release()

    def _used(self, by: str) -> RuntimeError:
        return RuntimeError(
            f"directory={str(self._path)!r} is used by another {by}. Wait until it has ended, or "
            "pass another directory."
        )

    def _is_known(self) -> bool:
        """Whether the newest state is the one that was read or written here; if not, it is read.
        It has to be of this run."""
        if bool(self._state) and self._processes.gather(self._states.is_newest()).all():
            return True
        number = self._newest()
        self._state = {"fingerprint": self._fingerprint, "reached": 0, "position": None, "ys": []}
        self._files.clear()
        if number:
            state = self._states.read_state(number)
            self._check(state["fingerprint"], self._fingerprint)
            self._check(state, {"version of the schedule": SCHEDULE})
            self._states.go_on(number, state)
            self._state = state
        self._unlock_if_over()
        return False

    def _newest(self) -> int:
        """The number of the newest state that all processes have; 0 if there is none."""
        own = self._states.newest()
        found = self._processes.gather(own)
        common = int(found.min())
        is_lost = common < 0 or (common == 0 and found.max() > 1)
        has_common = common in (0, own) or self._states.is_whole(common)
        if is_lost or not self._processes.gather(has_common).all():
            raise DamagedError(
                f"Every state in the directory {self._path} is damaged, or missing in one of its "
                "processes. Nothing was changed. Remove the directory, or pass another one, to "
                "begin again."
            )
        return common

    def _differ(self, saved: dict[str, Any], ours: dict[str, Any]) -> list[str]:
        """What is not the same in all of the processes."""
        found = self._processes.gather(*(saved.get(name) != ours[name] for name in ours))
        return [name for i, name in enumerate(ours) if found[:, i].any()]

    def _check(self, saved: dict[str, Any], ours: dict[str, Any]) -> None:
        """Refuse to go on with a run that is not this one."""
        differ = [f"the {name}" for name in self._differ(saved, ours)]
        if differ:
            raise ValueError(
                f"directory={str(self._path)!r} has another run: {' and '.join(differ)} differ "
                "from those of this call. Nothing was changed. Call host_scan as before to go on "
                "with that run, or pass another directory to begin a new one."
            )

    # What the newest state has

    @property
    def reached(self) -> int:
        """The steps that the sweep has taken, which is the reverse sweep if there is a final
        carry."""
        return self._state["reached"]

    @property
    def plan(self) -> Any:
        """The plan of the run; `None` of one that begins."""
        saved = self._state.get("plan")
        if saved is None:
            return None
        kind, fields, storage = saved
        if storage is not None:
            place = {"directory": self._path} if storage[0] == "Disk" else {}
            fields = fields | {"storage": _STORAGES[storage[0]](**storage[1], **place)}
        return _PLANS[kind](**fields)

    def begin(self, problem: Problem) -> Problem:
        """The run is of this problem. Checkpoints on disk are then in files of the directory, and
        not written again."""

        def keep_here(storage: Storage | None, values: Values) -> Checkpoint:
            if not isinstance(storage, Disk):
                return keep(storage, values)
            return self._checkpoint(self._write(values), storage)

        self._carry = Placed.of(problem.operands.carry)
        self._restart = Placed.of(pick(problem.operands.carry, problem.restart))
        self._problem = problem = problem._replace(keep=keep_here)
        plan = problem.plan
        storage = getattr(plan, "storage", None)
        fields = {k: v for k, v in asdict(plan).items() if k != "storage"}
        own = {k: v for k, v in asdict(storage).items() if k != "directory"} if storage else {}
        self._plan = [type(plan).__name__, fields, storage and [type(storage).__name__, own]]
        self._state |= {"plan": self._plan, "version of the schedule": SCHEDULE}
        return problem

    def position(self) -> Position:
        """Where the run goes on."""
        saved, problem = self._state["position"], self._problem
        if saved is None:
            return Position(carry=problem.operands.carry)
        carry = saved["carry"]
        held = {
            name: self._checkpoint(file, problem.storage_of(name))
            for name, file in saved["held"].items()
        }
        carry = carry and self._carry.on_device(self._states.read(carry))
        return Position(**saved | {"carry": carry, "held": held})

    def final(self) -> Values | None:
        """The final carry of a run whose forward sweep is over."""
        file = self._state.get("final")
        return None if file is None else self._carry.on_device(self._states.read(file))

    # The forward sweep

    def restore_ys(self, ys: Arriving) -> None:
        """Fill in the ys so far, if they are kept."""
        self._restore(ys, self._state["ys"], self._entries)

    def save_forward(self, position: Position, ys: Arriving, reached: int) -> None:
        """A state in the forward sweep, after so many steps."""
        kept = self._rows(ys, self._state["ys"], reached, self._entries)
        self._save(reached=reached, position=self._position(position), ys=kept)

    def finish_forward(self, position: Position | None, ys: Arriving, final: Values) -> None:
        """The state after the forward sweep, which is the end if there is no position."""
        self._save(
            reached=0,
            position=position and self._position(position),
            ys=self._rows(ys, self._state["ys"], self._problem.length, self._entries),
            final=self._write(final),
            is_over=position is None,
        )

    # The reverse sweep

    @property
    def is_over(self) -> bool:
        return self._state.get("is_over", False)

    def begin_reverse(self, cotangents: Cotangents, *, is_first: bool) -> bool:
        """Restore the cotangents so far. Returns false if those of the results differ, which is
        another run if it `is_first` that they are given, or if another call has begun again."""
        ours = {"cotangents of the results": of_operands([*cotangents.carry, *cotangents.ys])}
        given = self._state.get("given", ours)
        is_ours = "final" in self._state and self._state["plan"] == self._plan
        if not is_ours or (not is_first and self._differ(given, ours)):
            return False
        self._check(given, ours)
        self._state["given"] = ours
        carry, consts, xs = self._state.get("cotangents", (None, None, []))
        self._restore(cotangents.xs, xs, self._reversed_entries)
        if carry is not None:
            for name, file in (("carry", carry), ("consts", consts)):
                placed = Placed.of(getattr(cotangents, name))
                setattr(cotangents, name, placed.on_device(self._states.read(file)))
        return True

    def save_reverse(self, position: Position | None, cotangents: Cotangents, reached: int) -> None:
        """A state in the reverse sweep, after so many steps; the end if there is no position."""
        _, _, files = self._state.get("cotangents", (None, None, []))
        carry, consts = map(self._write, (cotangents.carry, cotangents.consts))
        xs = self._rows(cotangents.xs, files, reached, self._reversed_entries)
        self._save(
            reached=reached,
            position=position and self._position(position),
            cotangents=[carry, consts, xs],
            is_over=position is None,
        )

    # Files

    def _save(self, **changed: Any) -> None:
        state = self._state | changed
        self._processes.gather(0)  # all have written the state before
        self._states.save(state)
        self._state = state
        self._unlock_if_over()

    def _unlock_if_over(self) -> None:
        if self.is_over:
            self._states.unlock()

    def _write(self, values: Values) -> ArrayFile:
        return self._states.write(on_host(values))

    def _position(self, position: Position) -> dict[str, Any]:
        """A position, for a state."""
        carry = position.carry and self._write(position.carry)
        held = {name: self._file_of(kept) for name, kept in position.held.items()}
        return vars(position) | {"carry": carry, "held": held}

    def _file_of(self, checkpoint: Checkpoint) -> ArrayFile:
        if checkpoint not in self._files:
            self._files[checkpoint] = self._states.write(checkpoint.on_host())
        return self._files[checkpoint]

    def _checkpoint(self, file: ArrayFile, storage: Storage | None) -> Checkpoint:
        """A checkpoint in this storage, of a file of the directory."""
        if isinstance(storage, Disk):
            read = lambda: self._states.read(file)  # noqa: E731
            checkpoint = on_disk(file["bytes"], read, self._restart)
        else:
            checkpoint = keep(storage, self._restart.on_device(self._states.read(file)))
        self._files[checkpoint] = file
        return checkpoint

    def _entries(self, first: int, last: int) -> slice:
        """The entries of the steps from `first` to before `last`."""
        ends = self._problem.entry(first), self._problem.entry(last - 1)
        return slice(min(ends), max(ends) + 1)

    def _reversed_entries(self, first: int, last: int) -> slice:
        n = self._problem.length
        return self._entries(n - last, n - first)

    def _rows(
        self, rows: Arriving, files: RowFiles, steps: int, entries: Callable[[int, int], slice]
    ) -> RowFiles:
        """The files with the rows of so many steps; none if a function takes them."""
        rows.arrive()
        first = files[-1][1] if files else 0
        if not (isinstance(rows, Rows) and rows.arrays and first < steps):
            return files
        new = [array[entries(first, steps)] for array in rows.arrays]
        return [*files, (first, steps, self._states.write(new))]

    def _restore(
        self, rows: Arriving, files: RowFiles, entries: Callable[[int, int], slice]
    ) -> None:
        for first, last, file in files:
            assert isinstance(rows, Rows)
            for array, new in zip(rows.arrays, self._states.read(file), strict=True):
                array[entries(first, last)] = new
