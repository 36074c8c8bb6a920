"""Times what showing progress costs: the same loops with and without `progress=True`.

    python benchmarks/progress.py

prints a table and writes `benchmarks/results/progress-DEVICE.json`. A bar costs a little when it
is opened and closed, whatever the loop: the table tells how much, by a loop that takes no time. The
rest is to be at most 2 %.

It needs `jax_revolve[bench]`. All programs of a loop take turns in one process; run it on a machine
that does nothing else, for five minutes.
"""

import argparse
import json
import os
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from timing import describe_machine, device_slug, interleave

from jax_revolve import bounded_while_loop, checkpointed_scan

GOAL = 1.02


@dataclass(frozen=True)
class Loop:
    """A loop of `steps` steps from a state of `size` numbers."""

    name: str
    steps: int
    size: int
    step: Callable[[Any], Any]
    options: tuple[tuple[str, Any], ...] = ()
    stops_by_itself: bool = False

    def loss(self, progress: bool, u: Any) -> jax.Array:
        options = dict(self.options)
        if self.stops_by_itself:
            u, _ = bounded_while_loop(
                lambda state: state[1] < self.steps,
                lambda state: (self.step(state[0]), state[1] + 1),
                (u, jnp.int32(0)),
                max_steps=2 * self.steps,
                progress=progress,
                **options,
            )
        else:
            u, _ = checkpointed_scan(
                lambda u, _: (self.step(u), None),
                u,
                length=self.steps,
                progress=progress,
                **options,
            )
        return jnp.sum(u**2)


@dataclass(frozen=True)
class Comparison:
    """Median seconds of a program without and with progress, and the median of their ratios."""

    loop: str
    program: str
    off: float
    on: float
    ratio: float
    rounds: int


def stencil(u: Any) -> Any:
    return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3


def scalar(u: Any) -> Any:
    return u - 0.001 * jnp.sin(u)


def loops(smoke: bool) -> list[Loop]:
    few = 100 if smoke else 1
    n, many = 1000 // few, 100000 // few
    found = [
        Loop("no time at all", 1, 1, scalar),
        Loop("stencil", n, 20000, stencil),
        Loop("stencil", 10 * n, 20000, stencil),
        Loop(
            "stencil, every carry", n, 20000, stencil, (("checkpoints", "all"), ("block_size", 1))
        ),
        Loop("stencil, blocks", n, 20000, stencil, (("block_size", 10),)),
        Loop("stencil, while", n, 20000, stencil, stops_by_itself=True),
        Loop("scalar", many, 1, scalar),
        Loop("scalar, while", many, 1, scalar, stops_by_itself=True),
    ]
    return [found[0], *found[4:6]] if smoke else found


def compare(loop: Loop, budget: float, least_rounds: int) -> list[Comparison]:
    u = jnp.cos(jnp.arange(loop.size, dtype=jnp.float32))
    found = []
    for name, transform in {"value": lambda f: f, "gradient": jax.grad}.items():
        programs = [jax.jit(transform(partial(loop.loss, on))) for on in (False, True)]
        runs = [partial(_run, program, u) for program in programs]
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
            for run in runs:
                run()
            off, on = interleave(runs, budget, least_rounds)
        ratio = median(b / a for a, b in zip(off, on, strict=True))
        label = f"{loop.name}, {loop.steps} x {loop.size}"
        found.append(Comparison(label, name, median(off), median(on), ratio, len(off)))
    return found


def _run(program: Callable[[Any], Any], u: Any) -> None:
    jax.block_until_ready(program(u))
    jax.effects_barrier()


def table(found: list[Comparison]) -> str:
    lines = ["| loop | program | off, ms | on, ms | on / off |", "|---|---|---|---|---|"]
    for c in found:
        ms = f"{1e3 * c.off:.2f} | {1e3 * c.on:.2f}"
        lines.append(f"| {c.loop} | {c.program} | {ms} | {c.ratio:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="tiny loops, to see that all runs")
    parser.add_argument("--output", type=Path, help="JSON to write")
    parser.add_argument("--budget", type=float, default=15.0, help="seconds for each program")
    options = parser.parse_args()
    budget, rounds = (0.0, 2) if options.smoke else (options.budget, 5)
    found = [c for loop in loops(options.smoke) for c in compare(loop, budget, rounds)]
    print(table(found))
    output = options.output
    if output is None and not options.smoke:
        output = Path(__file__).parent / "results" / f"progress-{device_slug()}.json"
    if output:
        record = {"machine": describe_machine(), "goal": GOAL}
        record["comparisons"] = [asdict(c) for c in found]
        output.write_text(json.dumps(record, indent=1) + "\n")
        print(f"Written: {output}")


if __name__ == "__main__":
    main()
