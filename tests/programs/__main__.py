"""Runs random programs by hand, and makes those that fail smaller.

cd tests && python -m programs --first 1000 --count 500
cd tests && python -m programs --first 1234 --count 1 --minimize
"""

import argparse
import gc
import os
import time
from collections import Counter

os.environ["XLA_FLAGS"] = (  # before JAX is imported
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_cpu_parallel_codegen_split_count=1"  # small programs compile quicker in one piece
)

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)

from programs.program import Program, minimize  # noqa: E402
from programs.running import Refused, check  # noqa: E402


def outcome(program: Program) -> str:
    """What is wrong, "passed", or "Refused" if JAX's own loops refuse it."""
    try:
        check(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "passed"


parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("--first", type=int, default=0, help="the first seed")
parser.add_argument("--count", type=int, default=100, help="how many seeds from there")
parser.add_argument("--minimize", action="store_true", help="make failures smaller")
parser.add_argument("--switched", action="store_true", help="all with switches of JAX's turned")
options = parser.parse_args()
counts, started = Counter[str](), time.monotonic()
gc.set_threshold(50000, 20, 100)  # a traced program is many small objects
for seed in range(options.first, options.first + options.count):
    if seed % 50 == 0:
        jax.clear_caches()
        print(seed, dict(counts), f"{time.monotonic() - started:.0f} s", flush=True)
    program = Program.random(seed)
    program = program.switched() if options.switched else program
    found = outcome(program)
    kind = found.partition(":")[0]
    counts[kind] += 1
    if options.count == 1 or kind not in ("passed", Refused.__name__):
        print(f"\n{seed}: {found}\n{program}", flush=True)
    if options.minimize and kind not in ("passed", Refused.__name__):
        program = minimize(program, lambda p, kind=kind: outcome(p).partition(":")[0] == kind)
        print(f"smaller: {outcome(program)}\n{program}", flush=True)
print(dict(counts), f"{time.monotonic() - started:.0f} s", flush=True)
