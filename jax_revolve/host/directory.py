"""The directory of a run that can be resumed."""

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from jax_revolve._compat.values import pick
from jax_revolve.host.arrays import Checkpoint, Placing, Rows, Values, keep, on_host, placing
from jax_revolve.host.identity import digest_of_arrays
from jax_revolve.host.problem import Cotangents, Position, Problem
from jax_revolve.host.states import ArrayFile, DamagedError, States
from jax_revolve.host.watch import Processes, Watch
from jax_revolve.schedule.actions import SCHEDULE
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import Disk, HostMemory, Place
from jax_revolve.storage.files import LOGGER

LAYOUT = 4
"""The version of what a state has."""


class RunDirectory:
    """The directory of a run, which resumes from the newest state there. A state has

    - the `identity` of the run;
    - the `plan`, the version of the schedule by which the plan's actions are counted, and the
        version of the layout of states;
    - the `position`, and `ys`: the files with the ys;
    - after the forward sweep, the `final` carry;
    - in the reverse sweep, `given`: the digest of the results' cotangents, and the
        `cotangents` of the carry and the consts so far, and files with the ones of `xs`;
    - at the end, `is_over`.

    All processes of a run use states of the same number. A process writes a state once all have
    written the one before. So the newest states of two processes are at most one apart, and it is
    enough that each process keeps two.
    """

    def __init__(self, path: Path, problem: Problem, processes: Processes) -> None:
        self._path, self._problem, self._processes = path, problem, processes
        self._identity = problem.identity(processes.count)
        self._states = States(path / f"process-{processes.index}")
        self._state: dict[str, Any] = {}
        carry = problem.operands.carry
        self._carry, self._restart = placing(carry), placing(pick(carry, problem.restart))

    def running(self, watch: Watch) -> AbstractContextManager[None]:
        """Lock the directory for a sweep, which begins with `is_known`."""
        user = "process"
        with suppress(BlockingIOError):
            one_at_a_time, user = self._states.lock().running, "call in this process"
            if one_at_a_time.acquire(blocking=False):
                return self._locked(one_at_a_time, watch)
        self._states.unlock()
        raise RuntimeError(
            f"directory={str(self._path)!r} is used by another {user}. Wait until it has ended, or "
            "pass another directory."
        )

    @contextmanager
    def _locked(self, one_at_a_time: Lock, watch: Watch) -> Iterator[None]:
        """Raises nothing before the sweep: the frames of `contextlib` would be all that JAX shows
        of such an error."""
        note = (
            f"host_scan saved the run in directory={str(self._path)!r}. Call it again with the "
            "same arguments, in this process or another one, to go on."
        )
        goes_on = False
        try:
            with watch.interruptible(self._processes, note):
                yield
            goes_on = not self.is_over
        except OSError:
            self._states.undo()
            raise
        finally:
            if not goes_on:
                self._states.unlock()
            one_at_a_time.release()

    def is_known(self) -> bool:
        """Whether this object knows the newest state. If not, it goes on from there now."""
        is_newest = bool(self._state) and self._states.is_newest()
        is_known = bool(self._processes.gather(is_newest).all())
        if not is_known:
            self._read_newest()
        return is_known

    def _read_newest(self) -> None:
        """Read the newest state that all processes have, which must be of this run."""
        own = self._states.newest()
        found = self._processes.gather(own)
        number = int(found.min())
        is_lost = number < 0 or (number == 0 and found.max() > 1)
        has_common = number in (0, own) or self._states.is_whole(number)
        if is_lost or not self._processes.gather(has_common).all():
            raise DamagedError(
                f"Every state in the directory {self._path} is damaged, or missing in one of its "
                "processes. Nothing was changed. Remove the directory, or pass another one, to "
                "begin again."
            )
        begun = {"identity": self._identity, "position": None, "ys": [], "xs": []}
        self._state = begun | _versions()
        if number:
            state = self._states.read_state(number)
            self._check(state, _versions())
            self._check(state["identity"], self._identity)
            self._state = state
            if self._processes.index == 0:
                LOGGER.warning("host_scan: run in %s: %s.", self._path, self._skipped())
        self._states.go_on(number)

    def _skipped(self) -> str:
        """Where a saved run resumes, and what it skips."""
        if self.is_over:
            return "over, so no step runs"
        is_reverse, forward = "cotangents" in self._state, "the forward sweep is skipped"
        if "final" in self._state and not is_reverse:
            return forward
        done = f"{self._state['position']['reached']} of {self._problem.length} steps"
        if is_reverse:
            return f"{forward}, the reverse sweep goes on after {done}"
        return f"the forward sweep goes on after {done}"

    def _differ(self, saved: dict[str, Any], ours: dict[str, Any]) -> list[str]:
        """The names of entries that differ in any process."""
        found = self._processes.gather(*(saved.get(name) != ours[name] for name in ours))
        return [name for i, name in enumerate(ours) if found[:, i].any()]

    def _check(self, saved: dict[str, Any], ours: dict[str, Any]) -> None:
        """Refuse to go on with a run that is not this one."""
        differ = {name: f"the {name}" for name in self._differ(saved, ours)}
        for name in differ:
            if not re.fullmatch("[0-9a-f]{64}", str(ours[name])):  # a digest says nothing
                differ[name] += f" ({saved.get(name)} there, {ours[name]} here)"
        if differ:
            raise ValueError(
                f"directory={str(self._path)!r} has another run, which differs from this call in "
                f"{' and '.join(differ.values())}. Nothing was changed. To go on with that run, "
                "call host_scan as it was called there; to begin a new one, pass another directory."
            )

    # Where a run goes on

    def begin(self, ys: Rows) -> Problem:
        """Go on from the newest state, with the ys so far, if they are kept. Returns the problem
        with the run's plan."""
        self.is_known()
        saved = self._state.setdefault("plan", _saved_plan(self._problem.plan))
        self._problem = self._problem._replace(plan=_read_plan(saved, self._path))
        self._restore(ys, self._state["ys"])
        return self._problem

    def position(self) -> Position:
        saved = self._state["position"]
        if saved is None:
            return Position(carry=self._problem.operands.carry)
        held = {
            name: self._checkpoint(file, self._problem.storage_of(name))
            for name, file in saved["held"].items()
        }
        return Position(**saved | {"carry": self._read(saved["carry"], self._carry), "held": held})

    def final(self) -> Values | None:
        """The final carry of a run whose forward sweep is over."""
        return self._read(self._state.get("final"), self._carry)

    @property
    def is_over(self) -> bool:
        return self._state.get("is_over", False)

    def begin_reverse(self, cotangents: Cotangents, *, is_first: bool) -> bool:
        """Restore the cotangents so far. Returns false if this must be another run, because another
        call has begun again, or a later pullback has other cotangents of the results."""
        ours = {"cotangents of the results": digest_of_arrays([*cotangents.carry, *cotangents.ys])}
        given = self._state.get("given", ours)
        is_ours = "final" in self._state and self._state["plan"] == _saved_plan(self._problem.plan)
        if not is_ours or (not is_first and self._differ(given, ours)):
            return False
        self._check(given, ours)
        self._state["given"] = ours
        if "cotangents" in self._state:
            carry, consts = self._state["cotangents"]
            cotangents.carry = self._read(carry, placing(cotangents.carry)) or []
            cotangents.consts = self._read(consts, placing(cotangents.consts)) or []
            self._restore(cotangents.xs, self._state["xs"])
        return True

    # Files

    def keep(self, storage: Place | None, values: Values) -> Checkpoint:
        """A checkpoint. On disk, it is a file of the directory, which `save` does not copy."""
        if not isinstance(storage, Disk):
            return keep(storage, values)
        return self._checkpoint(self._write(values), storage)

    def save(
        self,
        position: Position,
        to: Rows | Cotangents,
        final: Values | None = None,
        *,
        is_over: bool = False,
    ) -> None:
        """Write a state: the position, the ys or cotangents so far, and perhaps the final carry."""
        for checkpoint in position.held.values():
            if checkpoint.file is None:
                checkpoint.file = self._states.write(checkpoint.on_host())
        held = {name: checkpoint.file for name, checkpoint in position.held.items()}
        carry = None if position.carry is None else self._write(position.carry)
        state: dict[str, Any] = self._state | {
            "position": vars(position) | {"carry": carry, "held": held}
        }
        state["is_over"] = is_over
        if final is not None:
            state["final"] = self._write(final)
        if isinstance(to, Rows):
            state["ys"] = self._with_new(state["ys"], to)
        else:
            state["cotangents"] = [self._write(to.carry), self._write(to.consts)]
            state["xs"] = self._with_new(state["xs"], to.xs)
        self._processes.gather(0)  # all have written the state before
        self._states.save(state)
        self._state = state

    def _write(self, values: Values) -> ArrayFile:
        return self._states.write(on_host(values))

    def _read(self, file: ArrayFile | None, place: Placing) -> Values | None:
        return None if file is None else place(self._states.read(file))

    def _checkpoint(self, file: ArrayFile, storage: Place | None) -> Checkpoint:
        """A checkpoint in this storage, from a file of the directory."""
        read = lambda: self._states.read(file)  # noqa: E731
        on_device = lambda: self._restart(read())  # noqa: E731
        if isinstance(storage, Disk):
            return Checkpoint("on disk", file["bytes"], on_device, read, file)
        checkpoint = keep(storage, on_device())
        checkpoint.file = file
        return checkpoint

    def _with_new(self, files: list[Any], rows: Rows) -> list[Any]:
        """The files of rows, with one more for new rows; none if a function takes the rows."""
        rows.arrive()
        if rows.new is None or not rows.arrays:
            return files
        (first, last), rows.new = rows.new, None
        file = self._states.write([array[first : last + 1] for array in rows.arrays])
        return [*files, (first, last, file)]

    def _restore(self, rows: Rows, files: list[Any]) -> None:
        for first, last, file in files:
            for array, new in zip(rows.arrays, self._states.read(file), strict=True):
                array[first : last + 1] = new


def _versions() -> dict[str, int]:
    return {"version of the schedule": SCHEDULE, "version of the layout": LAYOUT}


def _saved_plan(plan: Plan | None) -> Any:
    """A plan, as JSON. Its storage on disk is the directory of the run."""
    if plan is None:
        return None
    fields = asdict(plan)
    if isinstance(plan.storage, Disk):
        fields["storage"]["directory"] = None
    return json.loads(json.dumps(fields))


def _read_plan(saved: Any, directory: Path) -> Plan | None:
    """The plan that `_saved_plan` wrote."""
    if saved is None:
        return None
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()}
    if (storage := fields["storage"]) is not None:
        is_disk = "directory" in storage
        own: Any = {"directory": directory} if is_disk else {}
        fields["storage"] = (Disk if is_disk else HostMemory)(**storage | own)
    return Plan(**fields)
