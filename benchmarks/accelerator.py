"""What is to be known of an accelerator, in slices of minutes that add to one file of results:

1. the smallest row that is worth having: time over memory of a wave
2. the same of forces between particles, and of an LSTM
3. the same of a transformer's block, and of a neural differential equation
4. checkpoints in the host's memory
5. while loops
6. command buffers: a gradient of static loops in a process of its own, twice, as XLA compiles it,
   with loops in command buffers, and with buffers for single kernels

What fails, as by lack of memory, is recorded with its error, and the others go on.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from benchmarks import fronts, storage, while_loop
from benchmarks.contenders.scans import JAX_REVOLVE
from benchmarks.runner.benchmark import Benchmark, Measurement, Piece
from benchmarks.runner.programs import Compiler, Contender, Record
from benchmarks.runner.timing import interleave
from benchmarks.workloads import steps
from benchmarks.workloads.recurrences import scanned
from jax_revolve import checkpointed_scan

FLAGS = {
    "as XLA compiles it": "",
    "loops in command buffers": "--xla_gpu_enable_command_buffer=+WHILE",
    "command buffers of one kernel": "--xla_gpu_graph_min_graph_size=1",
}
MINUTES = 2.5
"""After which a process is given up."""


def command_buffers(quick: bool) -> Iterator[Measurement]:
    for name in FLAGS:
        yield Measurement(f"command buffers: {name}", partial(_in_a_process, name))


def _in_a_process(name: str, quick: bool) -> list[Record]:
    code = f"from benchmarks.accelerator import timed; timed({quick})"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS[name]}".strip()
    environment = os.environ | {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    about: Record = {"workload": "command buffers", "contender": name}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60 * MINUTES,
        )
    except subprocess.TimeoutExpired:
        return [about | {"error": f"no result after {MINUTES} minutes"}]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return [about | {"error": f"exit status {done.returncode}: {last[:300]}"}]
    return [about | json.loads(done.stdout.splitlines()[-1])]


def timed(quick: bool) -> None:
    """Print the medians of a gradient in milliseconds, run many times, and again once compiled
    anew."""
    workload = scanned(steps.waves(*(16, 8) if quick else (1000, 500)))
    loop = partial(checkpointed_scan, checkpoints=40, block_size=25)
    found: list[float] = []
    for _ in range(2):
        program = Compiler(workload, "gradient")(Contender(JAX_REVOLVE, loop))
        found.append(1e3 * median(interleave([program.run], 5.0, quick=quick)[0]))
    print(json.dumps({"ms": found, "workload": workload.name}))


PARTS: dict[int, tuple[Callable[[bool], Iterator[Piece]], ...]] = {
    1: (partial(fronts.large, which=slice(0, 1)),),
    2: (partial(fronts.large, which=slice(1, 3)),),
    3: (partial(fronts.large, which=slice(3, None)),),
    4: (storage.large,),
    5: (while_loop.large,),
    6: (command_buffers,),
}


def of_part(part: int | None) -> Benchmark:
    """Or all of them, which write the same file."""
    if part not in (None, *PARTS):
        sys.exit(f"--part must be one of {', '.join(map(str, PARTS))}, but is {part}.")

    def pieces(quick: bool) -> Iterator[Piece]:
        for number, makers in PARTS.items():
            if part in (None, number):
                for some in makers:
                    yield from some(quick)

    return Benchmark("accelerator", pieces)
