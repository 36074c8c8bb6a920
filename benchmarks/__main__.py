"""Runs benchmarks, and makes the tables and pictures of what they find.

    python -m benchmarks              # an hour or two, on a machine that does nothing else
    python -m benchmarks --quick      # minutes: tiny loops, to see that everything runs
    python -m benchmarks --only scan  # one of them
    python -m benchmarks --draw       # only the tables and pictures, of earlier results

Each runs in a process of its own, with its contenders taking turns in it, and writes its results to
`benchmarks/results`, one file for each kind of device; a quick run writes nothing. They need
`jax_revolve[bench,plot]`, and are:

- `scan`: gradients and second order of scans
- `while_loop`: the same of while loops
- `reversible`: gradients of steps that are walked back by an inverse
- `budget`: a heavy network with little memory, beside pure Revolve
- `fronts`: time over memory, for steps of many kinds
- `plans`: what the plans that are chosen lose on the quickest
- `storage`: gradients with checkpoints beside the device
- `layers`: gradients of models
- `diffrax_adjoints`: solves of differential equations
- `compiling`: compile time and program size over the length of the loop
- `progress`: what showing progress costs
- `fit`: the largest budget with which a program fits
- `host_scan`: what a step costs when Python drives the loop
- `cpu_pieces`: what each piece of `jax_revolve.step.cpu` is worth

Three run only by name, because they need packages that the project does not depend on:

- `third_party`: gradients of programs of other packages
- `tpu_programs`: gradients compiled for a TPU, without one
- `gpu_programs`: gradients compiled for GPUs, without one; it needs `jax_revolve[gpu-programs]`

Two are commands of their own:

- `accelerator`: what is to be known of an accelerator, in two parts of less than nine minutes;
  `--help` lists its options
- `stale`: which results were measured with other sources than the ones that are checked out
"""

import argparse
import subprocess
import sys
from importlib import import_module

from benchmarks.report import pages, pictures

BENCHMARKS = (
    *("scan", "while_loop", "reversible", "budget", "fronts", "plans", "storage", "layers"),
    *("diffrax_adjoints", "compiling", "progress", "fit", "host_scan", "cpu_pieces"),
)
BY_NAME = ("third_party", "tpu_programs", "gpu_programs")
COMMANDS = ("accelerator", "stale")


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])
        return
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--quick", action="store_true", help="tiny loops; nothing is written")
    parser.add_argument("--only", choices=BENCHMARKS + BY_NAME, help="one of them")
    parser.add_argument("--draw", action="store_true", help="only tables and pictures")
    options = parser.parse_args()
    if options.only and not options.draw:
        import_module(f"benchmarks.{options.only}").BENCHMARK.run(options.quick)
    elif not options.draw:
        for name in BENCHMARKS:
            print(f"== {name}", flush=True)
            command = [sys.executable, "-m", "benchmarks", "--only", name]
            subprocess.run(command + ["--quick"] * options.quick, check=True)
    if not options.quick:
        pages.write()
        pictures.write()


if __name__ == "__main__":
    main()
