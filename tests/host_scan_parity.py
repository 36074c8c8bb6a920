"""Random programs whose results and gradients have the same bits by `host_scan` and
`checkpointed_scan`; see `test_host_scan_programs`.

Takes the first seed and the number of programs, and prints which are the same, and which are the
same but for rounding: a sum over steps may be added up in another order. XLA must not fuse a
step with what is around it, nor simplify it in view of that, or the two run other compiled steps:
that is in `XLA_FLAGS`, which are read once.
"""

import os
import sys
import tempfile
from functools import partial
from typing import Any

if __name__ == "__main__":
    passes = "fusion,cpu-instruction-fusion,algsimp,simplification,reassociate"
    os.environ["XLA_FLAGS"] = f"--xla_disable_hlo_passes={passes}"

import jax
import jax.numpy as jnp
import numpy as np
from programs import running
from test_host_scan_programs import ROOM, loops, program_of

from jax_revolve import checkpointed_scan, host_scan


def results(scan: Any, seed: int, directory: str) -> list[np.ndarray]:
    program = program_of(seed)
    options = running.options_of(program, directory) | {"block_size": 1}
    if "memory" in options:  # the two hold residuals of different sizes
        options = {"block_size": 1}
    if scan is host_scan:
        del options["block_size"]
    total = partial(running.total, program, loops(scan, **options))
    inputs = [*map(jnp.asarray, running.arguments(program))]
    return jax.tree.leaves(jax.value_and_grad(total, range(5))(*inputs))


def main(first: int, count: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    for seed in range(first, first + count):
        if seed % ROOM == 0:
            jax.clear_caches()
        with tempfile.TemporaryDirectory() as directory:
            ours, theirs = (results(s, seed, directory) for s in (host_scan, checkpointed_scan))
        pairs = list(zip(ours, theirs, strict=True))
        same = all(a.tobytes() == b.tobytes() for a, b in pairs)
        print(seed, "same" if same else "rounded" if all(map(is_rounded, pairs)) else "differs")


def is_rounded(pair: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether two arrays differ by a few roundings of their largest number."""
    ours, theirs = map(np.asarray, pair)
    most = 16 * np.finfo(ours.dtype).eps * np.max(np.abs(theirs), initial=0)
    return ours.dtype == theirs.dtype and bool(np.all(np.abs(ours - theirs) <= most))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
