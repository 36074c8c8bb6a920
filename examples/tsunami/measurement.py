"""The cost of a gradient: evaluations of the step, and memory of the program."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import Any

import jax

from .inversion import Problem
from .model import Scan


class Counter:
    """Counts the evaluations of the body of a scan at run time."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = Lock()

    def _add_one(self, _: Any) -> None:
        with self._lock:
            self.count += 1

    def watch(self, scan: Scan) -> Scan:
        """The same scan, whose evaluations are counted."""

        def watched(body: Scan, *arguments: Any, **options: Any) -> Any:
            def counted(carry: Any, x: Any) -> Any:
                number = jax.tree.leaves(carry)[0].ravel()[0]  # ties the call to this step
                jax.debug.callback(self._add_one, number)
                return body(carry, x)

            return scan(counted, *arguments, **options)

        return watched


def counted_evaluations(problem: Problem) -> int:
    """The evaluations of the step in one value and gradient of the misfit, counted at run time."""
    counter = Counter()
    watched = replace(problem, scan=counter.watch(problem.scan))
    program = watched.compiled_gradient()
    jax.block_until_ready(program(watched.no_guess()))
    jax.effects_barrier()
    return counter.count


def temporary_memory(program: jax.stages.Compiled) -> int:
    """Bytes of a compiled program's temporaries, without its arguments and results."""
    analysis: Any = program.memory_analysis()
    return int(analysis.temp_size_in_bytes)
