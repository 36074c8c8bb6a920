"""Loops in threads."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.record import Record

from jax_revolve import bounded_while_loop, checkpointed_scan
from jax_revolve.step.loop import once
from jax_revolve.typing import ProgressMeter


def power(x: Any, n: int, meter: ProgressMeter) -> Any:
    """A loop in a loop: n * n factors."""

    def row(y: Any, _: Any) -> Any:
        step = lambda state: (state[0] * x, state[1] + 1)  # noqa: E731
        start = (y, jnp.int32(0))
        return bounded_while_loop(lambda s: s[1] < n, step, start, max_steps=n + 1)[0], None

    return checkpointed_scan(row, 1.0, None, n, checkpoints=2, progress=meter)[0]


@pytest.mark.usefixtures("compile_quickly", "default_precision")
def test_two_threads_do_the_same_and_different_loops() -> None:
    """Each turn traces anew. Derivatives and bars are right, and nothing waits for ever."""
    meter, turns = Record(), 3

    def work(thread: int) -> list[float]:
        lengths = [3 + (i + thread * (i % 2)) % 3 for i in range(turns)]
        gradients = [jax.jit(jax.grad(lambda x, n=n: power(x, n, meter))) for n in lengths]
        return [
            float(gradient(1.1)) / (n * n * 1.1 ** (n * n - 1))
            for n, gradient in zip(lengths, gradients, strict=True)
        ]

    with ThreadPoolExecutor(2) as pool:
        found = [x for part in pool.map(work, range(2), timeout=300) for x in part]
    jax.effects_barrier()
    assert found == pytest.approx([1.0] * 2 * turns)
    names = sorted(name for name, _, _, closed in meter.bars if closed)
    assert names == ["forward"] * 2 * turns + ["reverse"] * 2 * turns


def test_what_is_found_first_is_what_all_threads_get() -> None:
    function, both_look = (jax.make_jaxpr(jnp.sin)(1.0),), Barrier(2, timeout=60)

    def find() -> object:
        both_look.wait()
        return object()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: once(function, ("test",), find), range(2))
    assert first is second
    assert once(function, ("test",), find) is first


def test_a_meter_has_one_listener() -> None:
    meter = Record()
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: meter._listener, range(100)))) == 1
