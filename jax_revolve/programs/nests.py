"""The loops of a program as a tree: which loop is inside which, and inside which recomputation."""

from collections.abc import Callable, Sequence
from itertools import chain

from jax_revolve.programs.find import FoundLoop
from jax_revolve.programs.location import Key
from jax_revolve.programs.share import FEW, MANY, Outlays, recomputed, together

OfLoop = Callable[[FoundLoop, Outlays], Outlays]
"""The outlays of a loop, given those of everything inside it."""


class Nests:
    """The loops of a program, and the equations that run again when they are transposed. The loops
    inside such an equation hold nothing before it runs again."""

    def __init__(self, loops: Sequence[FoundLoop]) -> None:
        self._loops = {loop.key: loop for loop in loops}
        recomputed = chain.from_iterable(loop.recomputed for loop in loops)
        inside: dict[Key, list[Key]] = {(): []}
        for key in sorted({*self._loops, *recomputed}):
            around = (key[:end] for end in range(len(key) - 1, -1, -1))
            inside[next(outer for outer in around if outer in inside)].append(key)
            inside[key] = []
        self._inside = inside

    def outlays(self, of_loop: OfLoop) -> Outlays:
        """The outlays of the whole program."""
        return self._together((), of_loop, MANY)

    def _together(self, key: Key, of_loop: OfLoop, most: int) -> Outlays:
        return together([self._of(inner, of_loop) for inner in self._inside[key]], most)

    def _of(self, key: Key, of_loop: OfLoop) -> Outlays:
        inside = self._together(key, of_loop, FEW)
        return of_loop(self._loops[key], inside) if key in self._loops else inside(recomputed)
