"""What a step costs when Python drives the loop: `host_scan` over the compiled step in a bare loop.

Prints microseconds per step; the steps do next to nothing.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve import host_scan, plan

STEPS, ROUNDS, CHECKPOINTS = 5000, 7, 50


def step(u: Any, x: Any) -> Any:
    return u - 0.001 * jnp.sin(u) + x, None


def bare(u: Any, xs: list[Any], compiled: Callable[..., Any]) -> Any:
    for x in xs:
        u, _ = compiled(u, x)
    return jax.block_until_ready(u)


def bare_gradient(u: Any, xs: list[Any], compiled: Callable[..., Any], pulled: Any) -> Any:
    """As many calls as a gradient makes, in one order."""
    advances = plan(len(xs), CHECKPOINTS).advances
    for i in range(advances):
        u, _ = compiled(u, xs[i % len(xs)])
    ct = jnp.ones_like(u)
    for x in xs:
        ct = pulled(u, x, ct)
    return jax.block_until_ready(ct)


def microseconds(run: Callable[[], Any], calls: int, rounds: int) -> float:
    run()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1e6 * median(times) / calls


class _Overhead(NamedTuple):
    def run(self, quick: bool) -> None:
        steps, rounds = (50, 1) if quick else (STEPS, ROUNDS)
        u, xs = jnp.ones(1000), jnp.zeros(steps)
        rows, compiled = list(xs), jax.jit(step)
        pulled = jax.jit(lambda u, x, ct: jax.vjp(lambda u: step(u, x)[0], u)[1](ct)[0])

        def loss(u: Any) -> Any:
            return jnp.sum(host_scan(step, u, xs, checkpoints=CHECKPOINTS)[0])

        calls = plan(steps, CHECKPOINTS).evaluations
        found = {
            "value, bare loop": (lambda: bare(u, rows, compiled), steps),
            "value, host_scan": (lambda: jax.block_until_ready(loss(u)), steps),
            "gradient, bare loop": (lambda: bare_gradient(u, rows, compiled, pulled), calls),
            "gradient, host_scan": (lambda: jax.block_until_ready(jax.grad(loss)(u)), calls),
        }
        for name, (run, count) in found.items():
            print(f"{name}: {microseconds(run, count, rounds):.1f} microseconds an evaluation")


BENCHMARK = _Overhead()
