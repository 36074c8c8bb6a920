"""What a step costs when Python drives the loop: `host_scan`, and the compiled step in a bare loop.

The steps do next to nothing. A gradient in a bare loop makes as many calls as the plan says, in one
order. Memory is what the arrays take that are on the device between two steps, at most.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp

from benchmarks.report.results import Results, Run, by_contender
from benchmarks.report.table import Table, of
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Record
from benchmarks.runner.timing import interleave, spread
from jax_revolve import HostMemory, host_scan, plan
from jax_revolve.host.watch import Watch

BARE_LOOP, HOST_SCAN = "compiled step in a bare loop", "host_scan"
SECONDS, STEPS, WIDTH = 6.0, 5000, 1000
CASES: list[tuple[str, dict[str, Any]]] = [
    ("value", {}),
    ("gradient", {"checkpoints": 50}),
    ("gradient", {"checkpoints": 10, "storage": HostMemory(checkpoints=40, transfer=0.5)}),
]


def step(u: Any, x: Any) -> Any:
    return u - 0.001 * jnp.sin(u) + x, None


def measurements(_: bool) -> Iterator[Measurement]:
    for quantity, options in CASES:
        name = " ".join([quantity, *map(str, options.values())])
        yield Measurement(name, partial(compared, quantity, options))


def compared(quantity: str, options: dict[str, Any], quick: bool) -> list[Record]:
    steps = 60 if quick else STEPS
    u, xs = jnp.ones(WIDTH), jnp.zeros(steps)
    made = plan(steps, block_size=1, **options) if options else None

    def value(u: Any) -> Any:
        return jnp.sum(host_scan(step, u, xs, **options)[0])

    of_host_scan = partial(value if made is None else jax.grad(value), u)
    runs = {BARE_LOOP: bare(u, xs, 0 if made is None else made.advances), HOST_SCAN: of_host_scan}
    blocking = [lambda run=run: jax.block_until_ready(run()) for run in runs.values()]
    times = interleave(blocking, SECONDS, quick=quick)
    record = {
        "quantity": quantity,
        "steps": steps,
        "checkpoints": options.get("checkpoints"),
        "storage": "HostMemory(40)" if "storage" in options else "",
        "evaluations": steps if made is None else made.evaluations,
        # The memory of the host is that of a CPU.
        "states": None if "storage" in options else states_on_the_device(of_host_scan),
    }
    return [
        {"contender": name, **record, **spread(each, times[0])}
        for name, each in zip(runs, times, strict=True)
    ]


def bare(u: Any, xs: Any, advances: int) -> Callable[[], Any]:
    """The calls of a value or, if there are `advances`, of a gradient."""
    rows, compiled = list(xs), jax.jit(step)
    pulled = jax.jit(lambda u, x, ct: jax.vjp(lambda u: step(u, x)[0], u)[1](ct)[0])

    def run() -> Any:
        carry, ct = u, jnp.ones_like(u)
        for i in range(advances or len(rows)):
            carry, _ = compiled(carry, rows[i % len(rows)])
        for x in rows if advances else ():
            ct = pulled(carry, x, ct)
        return carry, ct

    return run


def states_on_the_device(run: Callable[[], Any]) -> int:
    """The most arrays of the size of a carry that there are between two steps."""
    most, between_steps = [0], Watch.between_steps

    def counting(watch: Watch, *arguments: Any) -> None:
        most[0] = max(most[0], sum(x.size == WIDTH for x in jax.live_arrays()))
        between_steps(watch, *arguments)

    with patch.object(Watch, "between_steps", counting):
        run()
    return most[0]


def _microseconds(run: Run) -> str:
    """Of one evaluation."""
    return f"{1e3 * run['median_ms'] / run['evaluations']:.1f}"


def _of_host_scan(name: str) -> Callable[[dict[str, Run]], str]:
    return of(HOST_SCAN, f"{{{name}}}")


TABLES = {
    "host-scan": Table(
        "5000 steps {where}, each of which does next to nothing: microseconds of one evaluation,"
        " and the most states on the device (`benchmarks/host_scan.py`):",
        partial(by_contender, name="evaluations"),
        [
            ("result", _of_host_scan("quantity")),
            ("checkpoints", _of_host_scan("checkpoints")),
            ("storage", lambda runs: (s := runs[HOST_SCAN]["storage"]) and f"`{s}`"),
            ("evaluations", _of_host_scan("evaluations")),
            ("bare loop", of(BARE_LOOP, _microseconds)),
            ("`host_scan`", of(HOST_SCAN, _microseconds)),
            ("states", _of_host_scan("states")),
        ],
    ),
}


def _by_python(results: Results) -> str:
    """What one evaluation takes more than in a bare loop."""
    more = [
        (runs[HOST_SCAN]["median_ms"] - runs[BARE_LOOP]["median_ms"])
        / runs[HOST_SCAN]["evaluations"]
        for runs in by_contender(results, name="evaluations")
    ]
    return " to ".join(dict.fromkeys(f"{ms:.2f}" for ms in (min(more), max(more)))) + " ms"


BENCHMARK = Benchmark("host-scan", measurements, TABLES, {"by-python": _by_python})
