"""A gradient of `host_scan` that is saved; see `host/test_resume.py`.

Takes the name of a workload, the directory of the run, and a file for the result, which is written
when it is complete. Prints a line for each step, and takes its time.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve import Disk, HostMemory, host_scan
from jax_revolve.host.watch import Watch

STEPS = 40


def recurrent(directory: Any, scan: Any = host_scan, save_every: float = 0.0) -> Any:
    """Weights, xs and ys, with checkpoints on the device."""
    draw = np.random.default_rng(0).normal
    weights, xs = draw(size=(4, 4)) / 2, jnp.asarray(draw(size=(STEPS, 4)))

    def loss(weights: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, key, count = state
            h = jnp.tanh(weights @ h + x) + 0.1 * jax.random.normal(key, (4,))
            return (h, jax.random.fold_in(key, count), count + 1), (jnp.sin(h), count)

        init, options = (jnp.zeros(4), jax.random.key(0), 0), {"checkpoints": 5}
        saved = {"directory": directory, "save_every": save_every, "version": 1}
        (h, _, _), (ys, _) = scan(step, init, xs, **options, **saved)
        return jnp.sum(h**2) + jnp.sum(ys**2)

    return jax.value_and_grad(loss, (0, 1))(jnp.asarray(weights), xs)


def forced(directory: Any, scan: Any = host_scan, save_every: float = 0.0) -> Any:
    """Forcing from a function, and two levels; run backwards."""

    def forcing(i: int) -> Any:
        return np.sin(0.3 * i + np.arange(5))

    def loss(friction: Any, start: Any) -> Any:
        def step(u: Any, x: Any) -> Any:
            return u + 0.1 * (x - friction * u * jnp.abs(u)), None

        options = {"checkpoints": 2, "storage": Disk(directory, transfer=0.5)}
        saved = {"directory": directory, "save_every": save_every, "version": 1}
        u, _ = scan(step, start, forcing, STEPS, reverse=True, **options, **saved)
        return jnp.sum(u**3)

    return jax.value_and_grad(loss, (0, 1))(0.7, jnp.ones(5))


def _on_host(function: Any, x: Any, *more: Any) -> Any:
    return jax.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x, *more)


cube = jax.custom_vjp(lambda x: _on_host(lambda x: np.asarray(x) ** 3, x))
cube.defvjp(
    lambda x: (cube(x), x),
    lambda x, ct: (_on_host(lambda x, ct: 3 * np.asarray(x) ** 2 * np.asarray(ct), x, ct),),
)


def called(directory: Any, scan: Any = host_scan, save_every: float = 0.0) -> Any:
    """A step that calls NumPy and may raise an error, with all checkpoints in the host's memory."""

    def loss(rate: Any, start: Any) -> Any:
        def step(u: Any, _: Any) -> Any:
            u = eqx.error_if(u - rate * cube(u), jnp.any(u > 9), "large")
            return u, {"norm": jnp.sum(u**2)}

        options = {"checkpoints": 0, "storage": HostMemory(checkpoints=4)}
        saved = {"directory": directory, "save_every": save_every, "version": 1}
        u, ys = scan(step, start, length=STEPS, **options, **saved)
        return jnp.sum(jnp.sin(u)) + jnp.sum(ys["norm"])

    return jax.value_and_grad(loss, (0, 1))(jnp.asarray(0.05), jnp.linspace(0.1, 2.0, 6))


WORKLOADS = {"recurrent": recurrent, "forced": forced, "called": called}


def main(name: str, directory: str, result: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    between_steps, sleep = Watch.between_steps, partial(time.sleep, 0.005)

    def slowly(self: Watch, steps: int, values: Any, save: Any) -> None:
        print("a step", flush=True)
        sleep()
        between_steps(self, steps, values, save)

    Watch.between_steps = slowly
    leaves = jax.tree.leaves(WORKLOADS[name](directory, save_every=0.05))
    unfinished = Path(result).with_suffix(".part")
    unfinished.write_bytes(b"".join(np.asarray(leaf).tobytes() for leaf in leaves))
    os.replace(unfinished, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
