"""Rows, of which each state writes those that are new to a file."""

from collections.abc import Callable

from jax_revolve.host.rows import Arriving, Keys, Rows
from jax_revolve.storage.states import ArrayFile, States

Files = list[tuple[int, int, ArrayFile, Keys]]
"""The rows of the steps of a sweep from a first to before a last one, and which are PRNG keys."""


class SavedRows:
    """Rows of a sweep, some of which are in files."""

    def __init__(
        self, states: States, rows: Arriving, entries: Callable[[int, int], slice], files: Files
    ) -> None:
        """`entries` tells where the rows of some steps of the sweep are, counted in its order. The
        rows in the files are restored."""
        self._states, self._rows, self._entries, self._files = states, rows, entries, [*files]
        for first, last, file, keys in files:
            assert isinstance(rows, Rows)
            rows.restore(entries(first, last), states.read(file), keys)

    def save(self, steps: int) -> Files:
        """The files with the rows of so many steps of the sweep; none if a function takes them."""
        self._rows.arrive()
        first = self._files[-1][1] if self._files else 0
        if isinstance(self._rows, Rows) and first < steps:
            rows, keys = self._rows.saved(self._entries(first, steps))
            if rows:
                self._files.append((first, steps, self._states.write(rows), keys))
        return [*self._files]
