"""The folder of a process in the directory of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jax_revolve.host.processes import Processes
from jax_revolve.host.resume.fingerprint import Fingerprint
from jax_revolve.host.watch import Watch
from jax_revolve.storage.states import DamagedError, States


class Folder:
    """The states of this process. All processes of a run use states of the same number.

    A process writes a state once all of them have written the one before. So the newest states of
    two processes are at most one apart, and the two that each of them keeps are enough.
    """

    def __init__(self, directory: Path, processes: Processes) -> None:
        self._directory, self._processes = directory, processes
        directory.mkdir(exist_ok=True)
        self.states = States(directory / f"process-{processes.index}")
        self._lock()

    def newest(self, fingerprint: Fingerprint) -> dict[str, Any] | None:
        """The newest state that all processes have; `None` if there is none. It has to be of a run
        with this `fingerprint`."""
        number = self._newest()
        if number == 0:
            return None
        state = self.states.read_state(number)
        self.check(state["fingerprint"], fingerprint)
        self.states.go_on(number, state)
        if state.get("is_over"):
            self.states.unlock()
        return state

    def _newest(self) -> int:
        own = self.states.newest()
        found = self._processes.gather(own)
        common = int(found.min())
        is_lost = common < 0 or (common == 0 and found.max() > 1)
        has_common = common in (0, own) or self.states.is_whole(common)
        if is_lost or not self._processes.gather(has_common).all():
            raise DamagedError(
                f"Every state in the directory {self._directory} is damaged, or missing in one of "
                "its processes. Nothing was changed. Remove the directory, or pass another one, to "
                "begin again."
            )
        return common

    def check(self, saved: Fingerprint, ours: Fingerprint) -> None:
        """Refuse to go on with a run that is not this one, in any of the processes."""
        found = self._processes.gather(*(saved.get(name) != ours[name] for name in ours))
        differ = [f"the {name}" for i, name in enumerate(ours) if found[:, i].any()]
        if differ:
            raise ValueError(
                f"directory={str(self._directory)!r} has another run: {' and '.join(differ)} "
                "differ from those of this call. Nothing was changed. Call host_scan as before to "
                "go on with that run, or pass another directory to begin a new one."
            )

    def save(self, state: dict[str, Any]) -> None:
        """Write a state. The last one has `is_over`."""
        self._processes.gather(0)  # all have written the state before
        self.states.save(state)
        if state.get("is_over"):
            self.states.unlock()

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
            self.states.unlock()
            raise

    def _lock(self) -> None:
        try:
            self.states.lock()
        except BlockingIOError as error:
            raise RuntimeError(
                f"directory={str(self._directory)!r} is used by another process. Wait until it has "
                "ended, or pass another directory."
            ) from error
