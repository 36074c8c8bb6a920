"""Measures `checkpoint_loops` on programs of packages that know nothing of it.

    pip install dinosaur jax-cfd jaxley mujoco mujoco-mjx jax-md dynamax blackjax optax
    python benchmarks/third_party.py

prints a table per program and writes `benchmarks/results/third-party-DEVICE.json`: the memory and
the time of the gradient of a loss by `jax.grad` alone, by `checkpoint_loops` with its defaults, and
with a budget. The packages are not dependencies of the project. Programs whose packages are missing
are named and left out; nothing is written then, unless `--output` names a file. It needs
`jax_revolve[bench]`; all contenders of a table take turns in one process; run it on a machine that
does nothing else.
"""

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import jax
import jax.numpy as jnp
from command import compile_quickly
from programs import difference
from third_party_programs import PROGRAMS, ThirdParty
from timing import describe_machine, device_slug, interleave, seconds

from jax_revolve import FoundLoop, checkpoint_loops
from jax_revolve.schedule.report.table import aligned

PLAIN = "jax.grad"
DEFAULT = "checkpoint_loops"
BUDGET = "checkpoint_loops(memory=)"

SHARE = 0.1
"""Of the plain gradient's temporaries, the budget."""

NOT_REVERSIBLE = "Reverse-mode differentiation does not work"
LEAST = re.compile(r"memory must be at least (\d+) bytes")


@dataclass(frozen=True)
class Measurement:
    """The cost of a program's gradient. `loops` counts the checkpointed ones, `budget` is that of
    `memory=`, and `asked` a smaller one that was refused. `difference` is relative to the plain
    gradient; if there is none, it compares the derivative along all ones with that of forward
    mode. `rounding` is how far the plain gradient moves with the last digit of its argument."""

    program: str
    size: str
    versions: dict[str, str]
    contender: str
    loops: int
    budget: int | None
    asked: int | None
    temp_bytes: int
    compile_seconds: float
    median_ms: float
    quartiles_ms: tuple[float, float]
    repetitions: int
    difference: float
    rounding: float | None


class Gradient:
    """A compiled gradient, and what is known of it before it is timed."""

    def __init__(
        self, contender: str, loss: Callable[[Any], Any], argument: Any, **options: Any
    ) -> None:
        found: set[FoundLoop] = set()

        def where(loop: FoundLoop) -> bool:
            found.add(loop)
            return True

        if contender != PLAIN:
            loss = checkpoint_loops(loss, where=where, **options)
        stages: list[Any] = [jax.jit(jax.grad(loss))]
        self.contender = contender
        self.argument = argument
        self.budget: int | None = options.get("memory")
        self.compile_seconds = seconds(lambda: stages.append(stages[0].lower(argument).compile()))
        self.compiled = stages[-1]
        self.temp_bytes = int(self.compiled.memory_analysis().temp_size_in_bytes)
        self.loops = len({loop.key for loop in found})

    def run(self) -> Any:
        return jax.block_until_ready(self.compiled(self.argument))

    def rounding(self) -> float:
        """By how much the gradient changes, relatively, with the last digit of the argument."""
        moved = jax.tree.map(lambda x: x * (1 + jnp.finfo(x.dtype).eps), self.argument)
        return difference(self.compiled(moved), self.run())


def plain_gradient(loss: Callable[[Any], Any], argument: Any) -> Gradient | None:
    """`None` if the program runs a while loop, which has no reverse mode."""
    try:
        return Gradient(PLAIN, loss, argument)
    except ValueError as error:
        if NOT_REVERSIBLE in str(error):
            return None
        raise


def within_budget(gradient: Callable[..., Gradient], asked: int) -> Gradient:
    """The gradient within so many bytes or, if that is refused, within the least that is stated."""
    try:
        return gradient(memory=asked)
    except ValueError as error:
        if found := LEAST.search(str(error)):
            return gradient(memory=int(found[1]))
        raise


def measure(program: ThirdParty, smoke: bool, budget: float, rounds: int) -> list[Measurement]:
    """The first of them is the plain gradient, if there is one."""
    loss, argument = program.build(smoke)
    plain = plain_gradient(loss, argument)
    ours = partial(Gradient, loss=loss, argument=argument, max_steps=program.max_steps)
    gradients = [ours(DEFAULT)]
    asked = None
    if plain is not None:
        asked = int(SHARE * plain.temp_bytes)
        gradients = [plain, *gradients, within_budget(partial(ours, BUDGET), asked)]
    results = [gradient.run() for gradient in gradients]
    apart = partial(difference, reference=results[0])
    if plain is None:
        apart = partial(_difference_along_ones, loss, argument)
    rounding = None if plain is None else plain.rounding()
    times = interleave([gradient.run for gradient in gradients], budget, rounds)
    return [
        Measurement(
            program=program.name,
            size=program.size,
            versions={package: version(package) for package in program.packages},
            contender=gradient.contender,
            loops=gradient.loops,
            budget=gradient.budget,
            asked=None if gradient.budget in (None, asked) else asked,
            temp_bytes=gradient.temp_bytes,
            compile_seconds=gradient.compile_seconds,
            median_ms=1e3 * median(taken),
            quartiles_ms=_quartiles(taken),
            repetitions=len(taken),
            difference=apart(result),
            rounding=rounding,
        )
        for gradient, taken, result in zip(gradients, times, results, strict=True)
    ]


def _quartiles(times: list[float]) -> tuple[float, float]:
    first, _, last = quantiles(times, n=4, method="inclusive")
    return 1e3 * first, 1e3 * last


def _difference_along_ones(loss: Callable[[Any], Any], argument: Any, gradient: Any) -> float:
    ones = jax.tree.map(jnp.ones_like, argument)
    _, expected = jax.jit(lambda x: jax.jvp(loss, (x,), (ones,)))(argument)
    along = sum((jnp.sum(leaf) for leaf in jax.tree.leaves(gradient)), jnp.zeros(()))
    return difference(along, expected)


def table(found: list[Measurement]) -> str:
    """One program."""
    titles = (
        "loops",
        "MB",
        "budget MB",
        "ms",
        "quartiles",
        "runs",
        "compile s",
        "difference",
        "rounding",
    )
    rows: list[tuple[str, ...]] = [("gradient", *titles)]
    for m in found:
        rows.append(
            (
                m.contender,
                str(m.loops),
                f"{m.temp_bytes / 1e6:.2f}",
                "" if m.budget is None else f"{m.budget / 1e6:.2f}",
                f"{m.median_ms:.1f}",
                "{:.1f} - {:.1f}".format(*m.quartiles_ms),
                str(m.repetitions),
                f"{m.compile_seconds:.1f}",
                f"{m.difference:.1e}",
                "" if m.rounding is None else f"{m.rounding:.1e}",
            )
        )
    return "\n".join([f"{found[0].program}, {found[0].size}", *aligned(rows, words=1)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="tiny programs, to see that all runs")
    parser.add_argument("--output", type=Path, help="JSON to write")
    parser.add_argument("--only", choices=[p.name for p in PROGRAMS], help="one of them")
    parser.add_argument("--budget", type=float, default=15.0, help="seconds to time each program")
    parser.add_argument("--rounds", type=int, default=5, help="least rounds, whatever the budget")
    options = parser.parse_args()
    budget, rounds = (0.0, 2) if options.smoke else (options.budget, options.rounds)
    if options.smoke:
        compile_quickly()
    found: list[Measurement] = []
    missing: list[str] = []
    for program in PROGRAMS:
        if options.only not in (None, program.name):
            continue
        try:
            measurements = measure(program, options.smoke, budget, rounds)
        except ModuleNotFoundError as error:
            print(
                f"{program.name} is left out: {error}. pip install {' '.join(program.packages)}\n"
            )
            missing.append(program.name)
            continue
        print(table(measurements), end="\n\n", flush=True)
        found += measurements
    output = options.output
    if output is None and not (options.smoke or options.only or missing):
        output = Path(__file__).parent / "results" / f"third-party-{device_slug()}.json"
    if output:
        record = {"machine": describe_machine(), "measurements": [asdict(m) for m in found]}
        output.write_text(json.dumps(record, indent=1) + "\n")
        print(f"Written: {output}")


if __name__ == "__main__":
    main()
