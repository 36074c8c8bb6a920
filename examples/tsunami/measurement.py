"""What a gradient costs: how often the step runs, and how much memory the program asks for."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import Any

import jax

from .inversion import Problem
from .model import Scan


class Counter:
    """Counts, while the program runs, how often the body of a scan is evaluated."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = Lock()

    def _add_one(self, _: Any) -> None:
        with self._lock:
            self.count += 1

    def watch(self, scan: Scan) -> Scan:
        """The same scan, with every evaluation of its body counted."""

        def watched(body: Scan, *arguments: Any, **options: Any) -> Any:
            def counted(carry: Any, x: Any) -> Any:
                number = jax.tree.leaves(carry)[0].ravel()[0]  # ties the call to this step
                jax.debug.callback(self._add_one, number)
                return body(carry, x)

            return scan(counted, *arguments, **options)

        return watched


def counted_evaluations(problem: Problem) -> int:
    """Time steps that actually run when the gradient of the misfit is computed once."""
    counter = Counter()
    watched = replace(problem, scan=counter.watch(problem.scan))
    program = watched.compiled_gradient()
    jax.block_until_ready(program(watched.no_guess()))
    jax.effects_barrier()
    return counter.count


def temporary_memory(program: jax.stages.Compiled) -> int:
    """Bytes that a compiled program needs besides its arguments and results."""
    analysis: Any = program.memory_analysis()
    return int(analysis.temp_size_in_bytes)
