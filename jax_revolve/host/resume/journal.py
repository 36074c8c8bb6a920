"""The directory of a run that can be resumed: its states, written and read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve.host.levels import Checkpoint, OnDevice, OnHost
from jax_revolve.host.placement import Placed, Values, on_host
from jax_revolve.host.rows import Arriving, Rows
from jax_revolve.host.run import Place
from jax_revolve.schedule.storage import Disk, Storage
from jax_revolve.storage.states import Part, States


@dataclass(eq=False)
class InStates:
    """A checkpoint in a file of the directory."""

    states: States
    part: Part
    placed: Placed
    level: ClassVar[str] = "on disk"

    @property
    def nbytes(self) -> int:
        return sum(np.prod(shape) * jnp.dtype(name).itemsize for shape, name in self.part["types"])

    @property
    def data(self) -> list[np.ndarray]:
        return self.states.read(self.part)

    @property
    def values(self) -> Values:
        return self.placed.on_device(self.data)


class SavedRows:
    """Rows, of which each state writes those that are new to a file."""

    def __init__(self, states: States, rows: Arriving, entries: Callable[[int, int], slice]):
        """`entries` tells where the rows of some steps of a sweep are, counted in its order."""
        self._states, self._rows, self._entries = states, rows, entries
        self._files: list[tuple[int, int, Part]] = []

    def save(self, steps: int) -> list[tuple[int, int, Part]]:
        """The files with the rows of so many steps of the sweep; none if a function takes them."""
        self._rows.arrive()
        first = self._files[-1][1] if self._files else 0
        if isinstance(self._rows, Rows) and first < steps:
            rows = self._rows.saved(self._entries(first, steps))
            if rows:
                self._files.append((first, steps, self._states.write(rows)))
        return [*self._files]

    def restore(self, files: list[tuple[int, int, Part]], types: list[Any] | None) -> None:
        """The rows of these files, of these types or those of the arrays in them."""
        self._files = [*files]
        for first, last, part in files:
            assert isinstance(self._rows, Rows)
            data = self._states.read(part)
            own = [jax.typeof(x[0]) for x in data] if types is None else types
            self._rows.restore(self._entries(first, last), data, own)


class Journal:
    """Saves a run, and restores it."""

    def __init__(self, states: States, init: Values, restart: tuple[bool, ...]) -> None:
        self.states = states
        self._carry = Placed.of(init)
        self._restart = Placed.of([x for x, r in zip(init, restart, strict=True) if r])
        self._parts: WeakKeyDictionary[Checkpoint, Part] = WeakKeyDictionary()

    def keep(self, values: Values) -> Checkpoint:
        """A checkpoint in a file of the directory, which is not written again with a state."""
        checkpoint = InStates(self.states, self.states.write(on_host(values)), Placed.of(values))
        self._parts[checkpoint] = checkpoint.part
        return checkpoint

    def place(self, saved: Place) -> dict[str, Any]:
        """A place, for a state."""
        return {
            "actions": saved.actions,
            "steps": saved.steps,
            "evaluations": saved.evaluations,
            "carry": None if saved.carry is None else self.values(saved.carry),
            "slots": {number: self._part(held) for number, held in saved.slots.items()},
            "stores": {number: self._part(held) for number, held in saved.stores.items()},
        }

    def restored_place(
        self, state: dict[str, Any], slots: Storage | None, stores: Storage | None
    ) -> Place:
        """The place of a state, with checkpoints in these storages."""

        def held(parts: dict[str, Part], storage: Storage | None) -> dict[int, Checkpoint]:
            return {int(number): self._held(part, storage) for number, part in parts.items()}

        carry = state["carry"]
        return Place(
            state["actions"],
            state["steps"],
            state["evaluations"],
            None if carry is None else self.carry(carry),
            held(state["slots"], slots),
            held(state["stores"], stores),
        )

    def values(self, values: Values) -> Part:
        """Values, for a state."""
        return self.states.write(on_host(values))

    def carry(self, part: Part) -> Values:
        """The carry of a state."""
        return self._carry.on_device(self.states.read(part))

    def _part(self, held: Checkpoint) -> Part:
        if held not in self._parts:
            self._parts[held] = self.states.write(held.data)
        return self._parts[held]

    def _held(self, part: Part, storage: Storage | None) -> Checkpoint:
        if isinstance(storage, Disk):
            held: Checkpoint = InStates(self.states, part, self._restart)
        elif storage is None:
            held = OnDevice(self._restart.on_device(self.states.read(part)))
        else:
            held = OnHost(self.states.read(part), self._restart)
        self._parts[held] = part
        return held
