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


def failure(program: Program) -> str | None:
    """What is wrong, `None` if nothing is; "refused" if JAX's own loops refuse it."""
    try:
        check(program)
    except Refused as error:
        return f"refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="how many seeds from there")
    parser.add_argument("--minimize", action="store_true", help="make failures smaller")
    options = parser.parse_args()
    counts, started = Counter[str](), time.monotonic()
    gc.set_threshold(50000, 20, 100)  # a traced program is many small objects
    for seed in range(options.first, options.first + options.count):
        if seed % 50 == 0:
            jax.clear_caches()
            print(seed, dict(counts), f"{time.monotonic() - started:.0f} s", flush=True)
        program = Program.random(seed)
        wrong = failure(program)
        if wrong is None or wrong.startswith("refused"):
            counts["passed" if wrong is None else "refused"] += 1
            if options.count == 1:
                print(wrong or "passed")
            continue
        counts["failed"] += 1
        print(f"\n{seed}: {wrong}\n{program}", flush=True)
        if options.minimize:
            kind = wrong.partition(":")[0]
            fails = lambda p, kind=kind: (failure(p) or "").startswith(kind)  # noqa: E731
            program = minimize(program, fails)
            print(f"smaller: {failure(program)}\n{program}", flush=True)
    print(dict(counts), f"{time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
