"""Ways to run a loop whose gradient is wanted in little memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import equinox.internal as eqxi
import jax
from jax import lax

from jax_revolve import checkpointed_scan, plan

PLAIN = "lax.scan"
REMAT = "lax.scan(checkpoint)"
NESTED = "nested remat scan"
EQUINOX = "equinox checkpointed"
OURS = "jax_revolve"

# Inside a scan XLA cannot merge the recomputation with the original, so JAX's guard against that
# is not needed; leaving it out is what JAX advises and gives the rivals their best time.
remat = partial(jax.checkpoint, prevent_cse=False)


@dataclass(frozen=True)
class Contender:
    """A loop by name, with what is known in advance about the cost of its gradient.

    `loop` is called as `lax.scan`, or as `lax.while_loop` and then with `max_steps` built in.
    `evaluations` counts the steps that run, those that are run again included; `None` is unknown.
    `block` is the number of steps that are taped together, `budget` the bytes to keep to.
    """

    name: str
    loop: Callable[..., Any]
    checkpoints: int | None = None
    evaluations: int | None = None
    detail: str = ""
    max_steps: int | None = None
    block: int | None = None
    budget: int | None = None


def plain(length: int) -> Contender:
    return Contender(PLAIN, lax.scan, evaluations=length)


def rematerialized(length: int) -> Contender:
    def scan(body: Callable[..., Any], init: Any, xs: Any, length: int) -> tuple[Any, Any]:
        return lax.scan(remat(body), init, xs, length)

    return Contender(REMAT, scan, evaluations=2 * length)


def ours(length: int, checkpoints: int) -> Contender:
    evaluations = plan(length, checkpoints).evaluations
    scan = partial(checkpointed_scan, checkpoints=checkpoints)
    return Contender(OURS, scan, checkpoints, evaluations)


def equinox(checkpoints: int) -> Contender:
    """Equinox's loop; for as many checkpoints it stores about twice as many states as ours."""
    scan = partial(eqxi.scan, kind="checkpointed", checkpoints=checkpoints)
    return Contender(EQUINOX, scan, checkpoints)


def nested(blocks: tuple[int, ...], taped: bool) -> Contender:
    """Scans in scans: `blocks` are their lengths from the outermost to the innermost.

    Every scan but the innermost has its body rematerialized. The innermost one is plain (`taped`:
    it keeps what the derivatives of its steps need) or rematerialized too (it keeps the carries
    alone, and every step runs once more).
    """
    runs = len(blocks) if taped else len(blocks) + 1
    scan = partial(_nested_scan, blocks=blocks, taped=taped)
    detail = " x ".join(map(str, blocks)) + (", innermost taped" if taped else "")
    return Contender(NESTED, scan, evaluations=runs * prod(blocks), detail=detail)


def _nested_scan(
    body: Callable[..., Any],
    init: Any,
    xs: Any,
    length: int,
    *,
    blocks: tuple[int, ...],
    taped: bool,
) -> tuple[Any, Any]:
    step = body if taped else remat(body)

    def run(level: int, carry: Any, xs: Any) -> tuple[Any, Any]:
        inner = step if level == len(blocks) - 1 else remat(partial(run, level + 1))
        return lax.scan(inner, carry, xs, blocks[level])

    return run(0, init, jax.tree.map(lambda x: x.reshape(*blocks, *x.shape[1:]), xs))
