"""Loops that remember, beside `lax.scan` and Equinox's loop, which is promised that each entry is
written once and not read before."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.report.results import Results
from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Record, difference
from benchmarks.runner.timing import seconds
from jax_revolve import checkpointed_scan


class Program(NamedTuple):
    """`step(w, c, past, i)` returns the next c, and where to write it to the history, of `rows` and
    as many rows as there are steps. The first rows are the initial state."""

    step: Callable[[Any, Any, Any, Any], tuple[Any, Any]]
    length: int
    width: int
    rows: int
    weights: tuple[int, ...] = ()
    is_guarded: bool = False


def _delay(w: Any, c: Any, past: Any, i: Any) -> Any:
    return jnp.tanh(0.9 * c + 0.2 * w * past[i] + 0.01), i + 20


def _attention(w: Any, c: Any, past: Any, i: Any) -> Any:
    past = past[...]
    scores = jnp.where(jnp.arange(len(past)) <= i, past @ c / 10, -1e9)
    return jnp.tanh(c + 0.1 * jax.nn.softmax(scores) @ past + w), i + 1


def _volterra(w: Any, c: Any, past: Any, i: Any) -> Any:
    rows = jnp.arange(len(w))
    kernel = jnp.where(rows < i, w[(i - rows) % len(w)], 0.0)
    return jnp.tanh(0.9 * c + kernel @ jnp.sin(past[...]) + 0.01), i


def _network(w: Any, c: Any, past: Any, i: Any) -> Any:
    window = lax.dynamic_slice_in_dim(past[...], i, len(w))
    return jnp.tanh(0.5 * c + jnp.sum(w * jnp.sin(window), 0) + 0.01), i + len(w)


def _cache(w: Any, c: Any, past: Any, i: Any) -> Any:
    """One head of attention, whose keys and values are cached."""
    past, width = past[...], len(w)
    keys, values = past[:, :width], past[:, width:]
    query, new = c[:width] @ w[:, :width], c[:width] @ w[:, width:]
    scores = jnp.where(jnp.arange(len(past)) <= i, keys @ query / width**0.5, -1e9)
    out = jnp.tanh(c[:width] + jax.nn.softmax(scores) @ values)
    return jnp.concatenate([out, new]), i + 1


PROGRAMS = {
    "delay equation": Program(_delay, 1000, 100, 20),
    "attention over the history": Program(_attention, 1000, 100, 1),
    "triangular sum": Program(_volterra, 1000, 100, 0, (1000,)),
    "the same, every third write left out": Program(_volterra, 1000, 100, 0, (1000,), True),
    "time-delay network": Program(_network, 2000, 16, 200, (200, 16)),
    "cache of keys and values": Program(_cache, 256, 512, 1, (256, 512)),
}
LAX_SCAN, EQUINOX, DEFAULT = "lax.scan", "equinox, 10", "default"


def loops(program: Program) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {LAX_SCAN: lax.scan, DEFAULT: checkpointed_scan}
    for checkpoints in 10, 30:
        found[f"{checkpoints}"] = partial(checkpointed_scan, checkpoints=checkpoints)
    if not program.is_guarded:
        histories = {"buffers": lambda carry: carry[1], "checkpoints": 10}
        found[EQUINOX] = partial(eqxi.scan, kind="checkpointed", **histories)
    return found


def loss(program: Program, scan: Callable[..., Any], w: Any, x: Any) -> Any:
    length, rows = program.length, program.rows

    def step(carry: Any, i: Any) -> Any:
        c, past = carry
        c, at = program.step(w, c, past, i)
        written = past.at[at].set(c)
        return (c, jnp.where(i % 3 != 0, written, past) if program.is_guarded else written), None

    past = [jnp.broadcast_to(x, (rows, *x.shape)), jnp.zeros((length, *x.shape))]
    c, past = scan(step, (x, jnp.concatenate(past)), jnp.arange(length))[0]
    return jnp.sum(c**2) + 0.1 * jnp.sum(jnp.sin(past))


def _measured(name: str, quick: bool) -> list[Record]:
    program, records, exact = PROGRAMS[name], list[Record](), None
    if quick:
        program = program._replace(length=16)
    w = 0.02 * jax.random.normal(jax.random.key(0), program.weights)
    x = jnp.linspace(-0.5, 0.5, program.width)
    for loop, scan in loops(program).items():
        both = jax.value_and_grad(partial(loss, program, scan), (0, 1))
        run: Any = jax.jit(both).lower(w, x).compile()
        found = run(w, x)
        exact = found if exact is None else exact
        taken = [seconds(lambda run=run: jax.block_until_ready(run(w, x))) for _ in range(5)]
        record = {"system": name, "loop": loop, "difference": difference(found, exact)}
        bytes_ = run.memory_analysis().temp_size_in_bytes
        records.append(record | {"temp_bytes": bytes_, "median_ms": 1e3 * sorted(taken)[2]})
    return records


def pieces(quick: bool) -> Iterator[Measurement]:
    for name in list(PROGRAMS)[:2] if quick else PROGRAMS:
        yield Measurement(name, partial(_measured, name))


def _rows(results: Results) -> Any:
    return [(results, name) for name in dict.fromkeys(r["system"] for r in results.runs)]


def _megabytes(loop: str) -> Callable[[Any], str]:
    def cell(row: Any) -> str:
        runs = [r for r in row[0].runs if r["system"] == row[1] and r["loop"] == loop]
        return f"{runs[0]['temp_bytes'] / 1e6:.3g}" if runs else "cannot"

    return cell


TABLES = {
    "histories": Table(
        "Temporaries in MB of value and gradient, compiled {where} (`benchmarks/histories.py`):",
        _rows,
        [
            ("program", lambda row: row[1]),
            ("`jax.lax.scan`", _megabytes(LAX_SCAN)),
            ("Equinox, 10 checkpoints, `buffers=`", _megabytes(EQUINOX)),
            ("default", _megabytes(DEFAULT)),
            ("`checkpoints=10`", _megabytes("10")),
            ("`checkpoints=30`", _megabytes("30")),
        ],
    ),
}
BENCHMARK = Benchmark("histories", pieces, TABLES)
