"""Runs benchmarks, and makes the tables and pictures of what they find.

    python -m benchmarks              # hours, on a machine that does nothing else
    python -m benchmarks --quick      # minutes: tiny loops, to see that everything runs
    python -m benchmarks --only scan  # one of them
    python -m benchmarks --draw       # only the tables and pictures, of earlier results
    python -m benchmarks stale        # which results are of other sources, and who quotes them
    python -m benchmarks constants    # the CPU's profile of the cost model, of results of `plans`
    python -m benchmarks accelerator  # what is to be known of a GPU or TPU: `--part 1` to `6`

Each runs in a process of its own, with its contenders taking turns in it, and writes its results to
`benchmarks/results`, one file for each kind of device; a quick run writes to a temporary folder.
Stopped and run again, they go on with what is missing: results of the same sources and the same
machine are not measured again unless their file is deleted. They need `jax_revolve[bench,plot]`,
and are:

- `scan`: gradients and second order of scans
- `while_loop`: the same of while loops
- `reversible`: gradients of steps that are walked back by an inverse
- `drift`: how far such gradients are from exact ones, up to 100 000 steps
- `certificates`: gradients that are wrong on purpose, and how wrong they are
- `histories`: bytes of loops that carry an array and write a few of its entries
- `budget`: a heavy network with little memory, beside pure Revolve
- `fronts`: time over memory, for steps of many kinds
- `plans`: what the plans that are chosen lose on the quickest, and what is predicted of each
- `stencils`: stencils of several stages, whose values are read through several windows
- `small_steps`: steps of 3 to 100 numbers
- `examples`: `vmap` of gradients with data of each example
- `nests`: programs of `jax.lax` with loops in loops
- `storage`: gradients with checkpoints beside the device
- `layers`: gradients of models
- `diffrax_adjoints`: solves of differential equations
- `compiling`: compile time and program size over the length of the loop, for steps of many kinds
- `growth`: compile time, run time and memory up to a million steps, and to large steps
- `progress`: what showing progress costs
- `fit`: the largest budget with which a program fits
- `host_scan`: what a step costs when Python drives the loop
- `cpu_pieces`: what each piece of `jax_revolve.step.cpu` is worth

Three run only by name, because they need packages that the project does not depend on:

- `third_party`: gradients of programs of other packages
- `tpu_programs`: gradients compiled for a TPU, without one; it needs `libtpu`
- `gpu_programs`: gradients compiled for GPUs, without one; it needs `jax_revolve[gpu-programs]`

A command of its own runs pieces of them at sizes for an accelerator:

- `accelerator`: time over memory of large workloads, host memory, while loops, command buffers
"""

import argparse
import json
import subprocess
import sys
from importlib import import_module

from benchmarks import BENCHMARKS, BY_NAME
from benchmarks.runner.machine import load, sources

COMMANDS = ("accelerator", "constants", "stale")
QUIET = 0.5
"""The load of a machine that does nothing else."""


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=raw
    )
    parser.add_argument("command", nargs="?", choices=COMMANDS, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="tiny loops; results are not kept")
    parser.add_argument("--only", choices=BENCHMARKS + BY_NAME, help="one of them")
    parser.add_argument("--part", type=int, help="of `accelerator`")
    parser.add_argument("--draw", action="store_true", help="only tables and pictures")
    parser.add_argument("--busy", action="store_true", help="measure although the machine is busy")
    options = parser.parse_args()
    if options.command == "stale":
        sys.exit(stale() > 0)
    if options.command == "constants":
        import_module("benchmarks.report.constants").write()
        return
    if options.command == "accelerator":
        import_module("benchmarks.accelerator").of_part(options.part).run(options.quick)
        return
    if not options.draw:
        if load() > QUIET and not (options.quick or options.busy):
            sys.exit(f"The load is {load():.1f}: wait until it is {QUIET}, or add --busy.")
        if options.only:
            import_module(f"benchmarks.{options.only}").BENCHMARK.run(options.quick)
        for name in () if options.only else BENCHMARKS:
            print(f"== {name}", flush=True)
            command = [sys.executable, "-m", "benchmarks", "--only", name, "--busy"]
            subprocess.run(command + ["--quick"] * options.quick, check=True)
    if not options.quick:
        draw()


def draw() -> None:
    from benchmarks.report import pages, pictures

    pages.write()
    pictures.write()


def stale() -> int:
    """How many files of results were measured with another `jax_revolve` than is checked out. Only
    those are printed. Comments, docstrings and empty lines do not count."""
    from benchmarks.report import pages
    from benchmarks.report.results import FOLDER

    now, count = sources()["tree"], 0
    for path in sorted(FOLDER.glob("*.json")):
        machine = json.loads(path.read_text())["machine"]
        tree, commit = machine.get("tree"), str(machine.get("commit", "unknown"))[:12]
        if tree is None or tree != now:
            count += 1
            where = ", ".join(pages.quoting(path.stem))
            print(f"{path.stem:<18} {machine.get('date', '')}  commit {commit}  {where}")
    return count


if __name__ == "__main__":
    main()
