"""One process at a time in a folder."""

import errno
import os
import weakref
from contextlib import suppress
from pathlib import Path
from threading import Lock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""The errors of file systems without locks."""

_guard = Lock()
_held: "weakref.WeakValueDictionary[tuple[int, int], FolderLock]" = weakref.WeakValueDictionary()


class FolderLock:
    """Keeps other processes out of a folder, as long as this object or its process exists.

    The operating system unlocks a file whose process ended, whatever ended it. Where the file
    system has no locks, there is none. `running` is for threads of this process.

    A process that is forked from this one has the descriptor, too, and would keep the folder
    locked. So it closes the descriptor, which is its end of the lock.
    """

    def __init__(self, descriptor: int) -> None:
        self.running = Lock()
        self._descriptor = descriptor
        self._unlock = weakref.finalize(self, _unlock, descriptor)

    @property
    def is_held(self) -> bool:
        """Whether this is the process that locked the folder."""
        return self._unlock.alive

    def leave(self) -> None:
        """In a process that was forked: it has never locked the folder."""
        if self._unlock.detach():
            os.close(self._descriptor)


def _unlock(descriptor: int) -> None:
    if fcntl is not None:
        # Closed alone, the file stays locked if a program in C has forked, of which Python does
        # not know. Where there are no locks, this does nothing.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _leave_all() -> None:
    for lock in list(_held.values()):
        lock.leave()
    _held.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_all)


def lock_folder(folder: Path) -> FolderLock:
    """The folder's lock, shared in this process. `BlockingIOError` if another process has it."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    with _guard:
        status = os.fstat(descriptor)
        file = status.st_dev, status.st_ino
        lock = _held.get(file)
        if lock is not None:
            os.close(descriptor)
            return lock
        lock = _held[file] = FolderLock(descriptor)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                del _held[file]
                raise
        return lock
