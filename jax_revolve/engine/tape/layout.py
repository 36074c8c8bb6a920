"""Where a tape has the kept values of its steps. What a step returns, the next one is given.

In `c = tanh(w @ c + x)`, both c and the tanh are kept, and the tanh of a step is the c of the next.
So only c has a buffer, with a *tail*, which is the c after the block:

    entry     0     1     2    tail
    c        c[0]  c[1]  c[2]
    tanh           c[1]  c[2]  c[3]

A leapfrog scheme's steps return what they were given as another leaf: one buffer has both.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import is_literal
from jax_revolve._compat.values import zeros
from jax_revolve.storage.buffers import Buffers, read, write

Variable = Any
"""A variable of a jaxpr."""


def given_as(
    kept: Sequence[Variable], carry: Sequence[Variable], results: Sequence[Variable]
) -> dict[Variable, Variable]:
    """For kept variables that a step returns, the kept leaf of the carry as which the next step is
    given them, if there is one, without circles."""
    found, chosen = dict[Variable, Variable](), set(kept)
    for leaf, result in zip(carry, results, strict=False):
        if leaf not in chosen or is_literal(result) or result not in chosen or result in found:
            continue
        first = leaf
        while first in found:
            first = found[first]
        if first is not result:
            found[result] = leaf
    return found


class Tape(NamedTuple):
    """A buffer of entries for each step and, for some of them, the tail."""

    buffers: Buffers
    tails: dict[int, Any]


class Layout:
    """Where these kept variables are, if the next step is `given` some of them as others."""

    def __init__(
        self,
        kept: Sequence[Variable],
        carry: Sequence[Variable],
        given: Mapping[Variable, Variable],
    ) -> None:
        self._written = [i for i, v in enumerate(kept) if v not in given]
        """Which have a buffer."""
        self._types = [kept[i].aval for i in self._written]
        self._places = list[tuple[int, int]]()
        """For each, its buffer, and by how many entries it is ahead."""
        self._tails = dict[int, dict[int, int]]()
        """For a buffer, the leaf of the carry at each entry of its tail."""
        buffers = {kept[i]: buffer for buffer, i in enumerate(self._written)}
        for v in kept:
            first, ahead = v, 0
            while first in given:
                first, ahead = given[first], ahead + 1
            self._places.append((buffers[first], ahead))
            if ahead:
                tail = self._tails.setdefault(buffers[first], {})
                tail[ahead - 1] = carry.index(given[v])

    def empty(self, length: int) -> Tape:
        """A tape for so many steps."""
        made = list(map(zeros, self._types))
        tails = {i: broadcast(made[i], len(tail)) for i, tail in self._tails.items()}
        return Tape([broadcast(z, length) for z in made], tails)

    def write(self, tape: Tape, kept: list[Any], step: Any) -> Tape:
        """The tape with the kept values of this step of the block."""
        values = [kept[i] for i in self._written]
        return tape._replace(buffers=write(tape.buffers, values, step))

    def end(self, tape: Tape, carry: Sequence[Any]) -> Tape:
        """The tape of a block with this carry at its end."""
        tails = dict(tape.tails)
        for buffer, leaves in self._tails.items():
            for entry, leaf in leaves.items():
                (tails[buffer],) = write([tails[buffer]], [carry[leaf]], entry)
        return tape._replace(tails=tails)

    def read(self, tape: Tape, step: Any, count: Any) -> list[Any]:
        """The kept values of this step of a block of `count` steps."""
        return [self._entry(tape, *place, step, count) for place in self._places]

    def slices(self, tape: Tape, start: Any, length: int, count: Any) -> list[Any]:
        """The kept values of so many steps of a block. Those beyond its `count` steps are any."""
        return [self._slice(tape, *place, start, length, count) for place in self._places]

    def _entry(self, tape: Tape, buffer: int, ahead: int, step: Any, count: Any) -> Any:
        entry = step + ahead
        (found,) = read([tape.buffers[buffer]], entry)
        if not ahead:
            return found
        (after,) = read([tape.tails[buffer]], jnp.maximum(entry - count, 0))
        return lax.select(jnp.asarray(entry < count), found, after)

    def _slice(
        self, tape: Tape, buffer: int, ahead: int, start: Any, length: int, count: Any
    ) -> Any:
        found = lax.dynamic_slice_in_dim(tape.buffers[buffer], start, length)
        if not ahead:
            return found
        end = jnp.minimum(start + length, count)
        more = [self._entry(tape, buffer, ahead, end - ahead + i, count) for i in range(ahead)]
        more = lax.concatenate([lax.expand_dims(x, (0,)) for x in more], 0)
        longer = lax.concatenate([found, more], 0)
        longer = lax.dynamic_update_slice_in_dim(longer, more, end - start, 0)
        return lax.slice_in_dim(longer, ahead, ahead + length)


def broadcast(value: Any, length: int) -> Any:
    return jnp.broadcast_to(value, (length, *value.shape))
