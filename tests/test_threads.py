"""Threads that trace, differentiate and run loops at once."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_revolve import ProgressMeter, bounded_while_loop, checkpointed_scan
from jax_revolve._compat.loops import LoopEquation, run_around_loop
from jax_revolve.step.loop import Loop, once

pytestmark = pytest.mark.usefixtures("default_precision")


class Closed(ProgressMeter):
    """Which bars were shown to their end."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def start(self, name: str, total: int | None) -> str:
        del total
        return name

    def update(self, bar: str, steps: int) -> None:
        del bar, steps

    def close(self, bar: str) -> None:
        self.names.append(bar)


def power(x: Any, n: int, meter: ProgressMeter) -> Any:
    """A loop in a loop: n * n factors."""

    def row(y: Any, _: Any) -> Any:
        step = lambda state: (state[0] * x, state[1] + 1)  # noqa: E731
        start = (y, jnp.int32(0))
        y, _ = bounded_while_loop(lambda s: s[1] < n, step, start, max_steps=n + 1)
        return y, None

    return checkpointed_scan(row, 1.0, None, n, checkpoints=2, progress=meter)[0]


@pytest.mark.usefixtures("compile_quickly")
def test_two_threads_do_the_same_and_different_loops() -> None:
    """Each turn traces anew. Derivatives and bars are right, and nothing waits for ever."""
    meter, turns = Closed(), 3

    def work(thread: int) -> list[float]:
        lengths = [3 + (i + thread * (i % 2)) % 3 for i in range(turns)]
        found = []
        for n in lengths:
            gradient = jax.jit(jax.grad(lambda x, n=n: power(x, n, meter)))
            found.append(float(gradient(1.1)) / (n * n * 1.1 ** (n * n - 1)))
        return found

    with ThreadPoolExecutor(2) as pool:
        found = [x for part in pool.map(work, range(2), timeout=300) for x in part]
    jax.effects_barrier()
    assert found == pytest.approx([1.0] * 2 * turns)
    assert meter.names.count("forward") == meter.names.count("reverse") == 2 * turns


def test_what_is_found_first_is_what_all_threads_get() -> None:
    loops: list[Loop] = []

    def run(equation: LoopEquation, operands: list[Any]) -> list[Any]:
        loops.append(Loop.of(equation, 3, None))
        return loops[0].operands(operands).carry

    run_around_loop(lambda: jax.lax.scan(lambda c, _: (c, None), 1.0, None, 3), run)
    both_look = Barrier(2, timeout=60)

    def find() -> object:
        both_look.wait()
        return object()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: once(loops[0], ("test",), find), range(2))
    assert first is second
    assert once(loops[0], ("test",), find) is first


def test_a_meter_has_one_listener() -> None:
    meter = Closed()
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: meter._listener, range(100)))) == 1
