"""Runs every benchmark, one after the other, and makes the tables and pictures of what they find.

    python -m benchmarks           # an hour or two, on a machine that does nothing else
    python -m benchmarks --quick   # under three minutes: tiny loops, to see that everything runs

Each runs in a process of its own, with its contenders taking turns in it, and writes its results to
`benchmarks/results`, one file for each kind of device; a quick run writes nothing. They are:

- `headline`: gradients over the length of the loop
- `scan`: values, derivatives, gradients over the checkpoints, and second order, of scans
- `while_loop`: the same of loops that stop by themselves
- `budget`: gradients over the budget of memory
- `storage`: gradients with checkpoints beside the device
- `layers`: gradients of models
- `diffrax_adjoints`: solves of differential equations
- `compiling`: compile time and program size over the length of the loop
- `progress`: what showing progress costs

Not run here are `tpu_programs`, which needs a compiler for TPUs, and `third_party`, which needs the
packages whose programs it measures.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = (
    "headline",
    "scan",
    "while_loop",
    "budget",
    "storage",
    "layers",
    "diffrax_adjoints",
    "compiling",
    "progress",
)
PAGES = ("pages", "readme")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny loops; nothing is written")
    parser.add_argument("--only", choices=BENCHMARKS, help="one of them")
    options = parser.parse_args()
    for name in BENCHMARKS:
        if options.only in (None, name):
            _run(name, *["--smoke"] * options.quick)
    if not options.quick:
        for name in PAGES:
            _run(name)


def _run(name: str, *arguments: str) -> None:
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, str(HERE / f"{name}.py"), *arguments], check=True)


if __name__ == "__main__":
    main()
