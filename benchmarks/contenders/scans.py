"""Loops that are called as `lax.scan`, with a length."""

from functools import cache, partial
from typing import Any

import equinox.internal as eqxi
import jax
from jax import lax

from benchmarks.runner.programs import Contender
from jax_revolve import checkpointed_scan

JAX_REVOLVE = "jax_revolve"
EQUINOX = "equinox checkpointed"
NESTED = "nested remat scan"

# Inside a scan XLA cannot merge the recomputation with the original, so JAX's guard against that
# is not needed; leaving it out is what JAX advises and gives other contenders their best time.
remat = partial(jax.checkpoint, prevent_cse=False)


def _scan_of_checkpoints(body: Any, init: Any, xs: Any, length: int, **policy: Any) -> Any:
    return lax.scan(remat(body, **policy), init, xs, length)


def _taped_whole(body: Any, init: Any, xs: Any, length: int) -> Any:
    return checkpointed_scan(body, init, xs, length, checkpoints=1, block_size=length)


LAX_SCAN = Contender("lax.scan", lax.scan)
REMAT = Contender("lax.scan(checkpoint)", _scan_of_checkpoints)
SAVES_PRODUCTS = Contender(
    "lax.scan(checkpoint, products saved)",
    partial(_scan_of_checkpoints, policy=jax.checkpoint_policies.dots_saveable),
)
BY_DEFAULT = Contender("jax_revolve by default", checkpointed_scan)
TAPED_WHOLE = Contender("jax_revolve, taped whole", _taped_whole)


def jax_revolve(checkpoints: int) -> Contender:
    scan = partial(checkpointed_scan, checkpoints=checkpoints)
    return Contender(JAX_REVOLVE, scan, checkpoints)


def equinox(checkpoints: int) -> Contender:
    """For as many checkpoints it stores about twice as many states as jax_revolve."""
    scan = partial(eqxi.scan, kind="checkpointed", checkpoints=checkpoints)
    return Contender(EQUINOX, scan, checkpoints)


@cache
def nested(blocks: tuple[int, ...], taped: bool) -> Contender:
    """Scans in scans: `blocks` are their lengths from the outermost to the innermost.

    Every scan but the innermost has its body rematerialized. The innermost one is plain (`taped`:
    it keeps the residuals of its steps) or rematerialized too (it keeps the carries alone, and
    every step runs once more).
    """
    scan = partial(_nested_scan, blocks, taped)
    detail = " x ".join(map(str, blocks)) + (", innermost taped" if taped else "")
    return Contender(NESTED, scan, detail=detail)


def _nested_scan(
    blocks: tuple[int, ...], taped: bool, body: Any, init: Any, xs: Any, _: int
) -> tuple[Any, Any]:
    step = body if taped else remat(body)

    def run(level: int, carry: Any, xs: Any) -> tuple[Any, Any]:
        inner = step if level == len(blocks) - 1 else remat(partial(run, level + 1))
        return lax.scan(inner, carry, xs, blocks[level])

    return run(0, init, jax.tree.map(lambda x: x.reshape(*blocks, *x.shape[1:]), xs))
