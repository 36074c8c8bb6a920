"""Measures what it takes to compile the gradient of a loop, over the loop's length.

    python benchmarks/compiling.py

prints a table per loop and writes `benchmarks/results/compiling-DEVICE.json`: the seconds of
tracing, of lowering and of compiling, and the size of the compiled program. JAX's caches and ours
are cleared before each time, and all contenders of a length take turns in one process. No loop is
run. It needs `jax_revolve[bench]`; run it on a machine that does nothing else.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import while_contenders
from command import compile_quickly
from contenders import OURS, Contender, equinox, nested, plain, rematerialized
from nesting import blockings
from timing import describe_machine, device_slug, interleave, seconds
from tqdm import tqdm
from while_workloads import WhileWorkload, until_limit
from workloads import Workload, rnn, stencil

from jax_revolve import bounded_while_loop, checkpointed_scan, plan
from jax_revolve.schedule import selection
from jax_revolve.schedule.report.table import aligned

LENGTHS = (10, 100, 1000, 10_000, 100_000, 1_000_000)
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = ", re.MULTILINE)
CARRIES = 100
"""The budget of `memory=`, in carries: short loops may be taped whole in it, long ones may not."""


@dataclass(frozen=True)
class Compilation:
    """Median seconds of a program's tracing, lowering and compiling, and the optimized program's
    size. `code_bytes` is that of the machine code, 0 where the compiler does not say. For a loop
    that stops by itself, `length` is the bound."""

    family: str
    size: str
    length: int
    contender: str
    detail: str
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    rounds: int
    instructions: int
    text_bytes: int
    code_bytes: int


class Compiler:
    """Compiles the gradient of a workload by one contender, again and again."""

    def __init__(self, workload: Workload, contender: Contender) -> None:
        self._workload = workload
        self._contender = contender
        self._phases: list[tuple[float, float, float]] = []
        self._compiled: Any = None

    def run(self) -> None:
        """From nothing to a compiled program; the time of clearing the caches is not noted."""
        jax.clear_caches()
        selection.quickest.cache_clear()
        stages: list[Any] = [jax.jit(self._gradient)]
        arguments = (self._workload.active, self._workload.passive)
        trace = seconds(lambda: stages.append(stages[-1].trace(*arguments)))
        lower = seconds(lambda: stages.append(stages[-1].lower()))
        compile = seconds(lambda: stages.append(stages[-1].compile()))
        self._phases.append((trace, lower, compile))
        self._compiled = stages[-1]

    def _gradient(self, active: Any, passive: Any) -> Any:
        return jax.grad(partial(self._workload.loss, self._contender.loop))(active, passive)

    def result(self) -> Compilation:
        """The first time is left out: in it, modules are imported and much else is set up."""
        text = self._compiled.as_text()
        analysis = self._compiled.memory_analysis()
        trace, lower, compile = map(median, zip(*self._phases[1:], strict=True))
        return Compilation(
            family=family(self._workload),
            size=self._workload.size,
            length=self._workload.length,
            contender=self._contender.name,
            detail=self._contender.detail,
            trace_seconds=trace,
            lower_seconds=lower,
            compile_seconds=compile,
            rounds=len(self._phases) - 1,
            instructions=len(INSTRUCTION.findall(text)),
            text_bytes=len(text),
            code_bytes=0 if analysis is None else int(analysis.generated_code_size_in_bytes),
        )


def family(workload: Workload) -> str:
    is_while = isinstance(workload, WhileWorkload)
    return f"{workload.family}, while" if is_while else workload.family


def contenders(workload: Workload) -> list[Contender]:
    """Each with the checkpoints that ours has by default, where it takes them."""
    n = workload.length
    if isinstance(workload, WhileWorkload):
        loop = partial(bounded_while_loop, max_steps=n)
        s = while_contenders.checkpoints_for(n, None)
        return [while_contenders.equinox(n, s), Contender(OURS, loop, s, max_steps=n)]
    budget = CARRIES * sum(leaf.nbytes for leaf in jax.tree.leaves(workload.init))
    return [
        plain(n),
        rematerialized(n),
        nested(_square(n), taped=True),
        equinox(plan(n).checkpoints),
        Contender(OURS, checkpointed_scan, detail="by default"),
        Contender(OURS, partial(checkpointed_scan, memory=budget), detail="memory="),
    ]


def _square(length: int) -> tuple[int, ...]:
    """The nested scans of two levels that are most alike in length, which take least memory."""
    return min(blockings(length, 2), key=lambda blocks: (max(blocks), blocks))


def workloads(lengths: Sequence[int]) -> Iterator[Workload]:
    """Made one after the other, since inputs of long loops are large."""
    yield from (stencil(n, 1000, ()) for n in lengths)
    yield from (rnn(n, 2, 8, ()) for n in lengths)
    yield from (until_limit(stencil(n, 1000, ()), (n,)) for n in lengths)


def smoke_workloads() -> Iterator[Workload]:
    yield stencil(4, 16, ())
    yield until_limit(stencil(4, 16, ()), (4,))


def measure(workload: Workload, rounds: int) -> list[Compilation]:
    compilers = [Compiler(workload, contender) for contender in contenders(workload)]
    runs = [compiler.run for compiler in compilers]
    for run in tqdm(runs, desc="Compiling", unit="program", leave=False):
        run()
    interleave(runs, 0.0, rounds)
    return [compiler.result() for compiler in compilers]


def table(found: list[Compilation]) -> str:
    """One workload."""
    titles = ("trace s", "lower s", "compile s", "instructions", "HLO kB", "code kB")
    rows: list[tuple[str, ...]] = [("gradient of", *titles)]
    for c in found:
        times = (f"{t:.3f}" for t in (c.trace_seconds, c.lower_seconds, c.compile_seconds))
        sizes = (f"{size / 1e3:.1f}" for size in (c.text_bytes, c.code_bytes))
        rows.append((f"{c.contender} {c.detail}".strip(), *times, str(c.instructions), *sizes))
    return "\n".join(
        [f"{found[0].family}, n = {found[0].length}, {found[0].size}", *aligned(rows, words=1)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="tiny loops, to see that all runs")
    parser.add_argument("--output", type=Path, help="JSON to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="of the loops")
    parser.add_argument("--rounds", type=int, default=5, help="times that each is compiled")
    options = parser.parse_args()
    if options.smoke:
        compile_quickly()
    found: list[Compilation] = []
    for workload in smoke_workloads() if options.smoke else workloads(options.lengths):
        compilations = measure(workload, 1 if options.smoke else options.rounds)
        print(table(compilations), end="\n\n", flush=True)
        found += compilations
    output = options.output
    if output is None and not options.smoke:
        output = Path(__file__).parent / "results" / f"compiling-{device_slug()}.json"
    if output:
        record = {"machine": describe_machine(), "programs": [asdict(c) for c in found]}
        output.write_text(json.dumps(record, indent=1) + "\n")
        print(f"Written: {output}")


if __name__ == "__main__":
    main()
