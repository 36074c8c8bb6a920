"""A meter that notes what it is told."""

from collections.abc import Callable
from typing import Any

import jax

from jax_revolve.progress.meters import ProgressMeter


class Record(ProgressMeter):
    """Of each bar: its name, its total, the steps it was told of, and whether it was closed."""

    def __init__(self) -> None:
        self.bars: list[tuple[str, int | None, list[int], list[bool]]] = []

    def start(self, name: str, total: int | None) -> Any:
        self.bars.append((name, total, [], []))
        return self.bars[-1]

    def update(self, bar: Any, steps: int) -> None:
        assert not bar[3]
        assert steps >= max(bar[2], default=0)
        bar[2].append(steps)

    def close(self, bar: Any) -> None:
        bar[3].append(True)

    def of(self, run: Callable[[], Any]) -> list[tuple[str, int | None, int]]:
        """The bars of a run: name, total, and the last number of steps."""
        self.bars.clear()
        jax.block_until_ready(run())
        jax.effects_barrier()
        assert all(closed == [True] for _, _, _, closed in self.bars)
        return [(name, total, steps[-1]) for name, total, steps, _ in self.bars]
