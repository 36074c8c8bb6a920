"""What gradients compiled for a GPU launch and hold, without a GPU.

Nothing runs, and it takes an hour or more. XLA compiles for a GPU that is described to it, and the
text of the program tells its kernels, loops, copies and transfers (`runner.hlo`). Run it in an
environment of its own: `pip install -e ".[gpu-programs]"`.
"""

import os
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import jax

from benchmarks.contenders import while_loops
from benchmarks.contenders.scans import EQUINOX, JAX_REVOLVE, LAX_SCAN, NESTED, equinox
from benchmarks.contenders.searches import TOLERANCE, explained, nested_within
from benchmarks.fronts import QUICK_SHAPES, SHAPES
from benchmarks.plans import in_words
from benchmarks.report.results import Results, Run, find
from benchmarks.report.table import Cell, Column, Table, of
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.hlo import ProgramText, on_described
from benchmarks.runner.programs import Compiler, Contender, Record, Workload, bytes_of
from benchmarks.workloads.recurrences import scanned, stencil, under_vmap
from jax_revolve import HostMemory, Plan, checkpointed_scan, plan
from jax_revolve.profiles import in_force
from jax_revolve.schedule import cost
from jax_revolve.schedule.arguments import TooLittleMemory

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
DESCRIBED = {
    H100: """
        shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
        core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
        memory_bandwidth: 3350000000000 l2_cache_size: 52428800
        cuda_compute_capability { major: 9 minor: 0 }
    """,
    A100: """
        shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912
        core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41
        memory_bandwidth: 2040000000000 l2_cache_size: 41943040
        cuda_compute_capability { major: 8 minor: 0 }
    """,
}
ALIKE = """
    threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
    block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
    shared_memory_per_block: 49152 device_memory_size: 85899345920
    registers_per_core_limit: 65536 registers_per_block_limit: 65536
"""
"""What XLA is told instead of being given the devices."""

BUDGETS = {H100: ("default", 0.3, 0.1, 0.05, 0.02), A100: ("default", 0.1)}
"""As shares of the memory of `lax.scan`."""


class CompilerFor(Compiler):
    """Compiles gradients for a device that is described."""

    def __init__(self, workload: Workload, device: str) -> None:
        super().__init__(workload, "gradient")
        self.device = device
        # The planner asks for the kind of device that JAX uses, which would be the CPU.
        described = SimpleNamespace(platform="gpu", device_kind=device)
        in_force.default_device = lambda: described

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        config = f"""
            gpu_device_info {{ {ALIKE} {DESCRIBED[self.device]} }}
            platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }}
            device_description_str: "{self.device}"
        """
        how = {"target_config": config, "topology": "1x1x1"}
        return on_described(super().arguments, "", "cuda", **how)

    @property
    def init(self) -> Any:
        return (self.workload.active | self.workload.passive).get("init")

    def record(self, contender: Contender, share: Any, iterations: int = 0) -> Record:
        """What the program takes and launches. `iterations` is how many its loops of unknown
        length run in all, one as often as another."""
        program = self(contender)
        text = ProgramText(program.compiled.as_text())
        facts = text.facts({x.shape for x in jax.tree.leaves(self.init)})
        launched = text.launched(unknown=iterations / max(facts["dynamic_loops"], 1))
        return {
            "device": self.device,
            "workload": self.workload.name,
            "length": self.workload.length,
            "contender": contender.name,
            "share": share,
            "detail": contender.detail,
            "temp_bytes": program.temp_bytes,
            "host_bytes": int(program.compiled.memory_analysis().host_temp_size_in_bytes),
            "kernels": round(launched.kernels),
            "waits": round(launched.waits),
            "beside_transfers": text.beside_transfers(),
            **facts,
        }


def of_scan(compiler: CompilerFor) -> Iterator[Record]:
    """`lax.scan`, and for each budget ours, the nested scans with the fewest levels that need no
    more, and Equinox's loop with as many checkpoints."""
    yield compiler.record(LAX_SCAN, None)
    everything = compiler(LAX_SCAN).temp_bytes
    for share in BUDGETS[compiler.device]:
        options = {"memory": int(share * everything)} if isinstance(share, float) else {}
        try:
            chosen = explained(compiler.workload, options).plan
        except TooLittleMemory:
            continue
        ours = Contender(
            JAX_REVOLVE, partial(checkpointed_scan, **options), detail=in_words(chosen)
        )
        memory = compiler(ours).temp_bytes
        yield compiler.record(ours, share, unknown(chosen))
        # The longer the innermost scan, the fewer kernels.
        found = [compiler.record(p.contender, share) for p in nested_within(compiler, memory, 2)]
        yield min(found, key=lambda record: record["kernels"])
        if share == 0.1 and compiler.device == H100:  # Equinox stores two states for a checkpoint
            half = memory // max(bytes_of(compiler.init), 1) // 2
            checkpoints = min(max(half, 1), compiler.workload.length)
            runs = plan(compiler.workload.length, checkpoints).evaluations
            yield compiler.record(equinox(checkpoints), share, runs)


def unknown(chosen: Any) -> int:
    """The iterations of its loops of unknown length."""
    return 0 if chosen.static_levels else chosen.evaluations


def of_while_loop(bound: int, compiler: CompilerFor) -> Iterator[Record]:
    """A loop whose examples stop at different steps. All loops of unknown length run as often as
    the example that takes the most steps needs."""
    ours = while_loops.jax_revolve(bound)
    steps, s = compiler.workload.length, ours.checkpoints or 1
    evaluations = cost.evaluations(Plan(steps, min(s, steps)), is_while=True)
    yield compiler.record(while_loops.masked(bound), None)
    yield compiler.record(ours, "default", evaluations)
    yield compiler.record(while_loops.equinox(bound, s), "default", plan(steps, s).evaluations)


def of_host_memory(compiler: CompilerFor) -> Iterator[Record]:
    """Checkpoints in the host's memory, one for each block, and as many as are worth it."""
    n = compiler.workload.length
    size = max(n // 50, 1)
    blocks = {"storage": HostMemory(checkpoints=-(-n // size)), "block_size": size}
    few = {"storage": HostMemory(checkpoints=30)}
    for name, options in {f"HostMemory, blocks of {size}": blocks, "HostMemory": few}.items():
        loop = partial(checkpointed_scan, checkpoints=0, **options)
        iterations = unknown(plan(n, 0, **options))
        yield compiler.record(Contender(JAX_REVOLVE, loop, detail=name), name, iterations)


def measurements(quick: bool) -> Iterator[Measurement]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    host, many, bound = stencil(1000, 20_000), stencil(64, 2000), 4096
    if quick:
        host, many, bound = stencil(16, 16), stencil(5, 16), 32
    for device in DESCRIBED:
        for make, shape in QUICK_SHAPES if quick else SHAPES:
            yield _measurement(scanned(make(*shape)), device, of_scan)
        yield _measurement(scanned(host), device, of_host_memory)
        yield _measurement(under_vmap(many, bound), device, partial(of_while_loop, bound))


def _measurement(
    workload: Workload, device: str, of: Callable[[CompilerFor], Iterator[Record]]
) -> Measurement:
    return Measurement(
        f"{device}, {workload.name}", lambda _: list(of(CompilerFor(workload, device)))
    )


LEANEST = "leanest nested scans"
Row = dict[str, Run]
"""The runs of one workload on one device with one budget, by contender."""


def _by_budget(results: Results) -> Iterator[Row]:
    """Of scans. `lax.scan` has no budget, and belongs to every row. Where no nested scans fit, the
    leanest are told apart."""
    for run in find(results.runs, contender=JAX_REVOLVE):
        same = {name: run[name] for name in ("device", "workload")}
        everything = find(results.runs, contender=LAX_SCAN.name, **same)
        if everything:
            others = find(results.runs, share=run["share"], **same)
            row = {LAX_SCAN.name: everything[0]} | {r["contender"]: r for r in others}
            if row[NESTED]["temp_bytes"] > TOLERANCE * run["temp_bytes"]:
                row[LEANEST] = row.pop(NESTED)
            yield row


def _budget(run: Run) -> str:
    return f"{run['share']:.0%}" if isinstance(run["share"], float) else run["share"]


def _most_over_a_budget(results: Results) -> str:
    """What a gradient takes of its budget, at most."""
    shares = [
        row[JAX_REVOLVE]["temp_bytes"]
        / (row[JAX_REVOLVE]["share"] * row[LAX_SCAN.name]["temp_bytes"])
        for row in _by_budget(results)
        if isinstance(row[JAX_REVOLVE]["share"], float)
    ]
    return f"{max(shares):.1f}"


def _device(run: Run) -> str:
    return run["device"].removeprefix("NVIDIA ").partition("-")[0].partition(" ")[0]


def _memory_of_nested(row: Row) -> str:
    return of(NESTED, "{MB:.3g} MB")(row) or of(LEANEST, "at least {MB:.3g} MB")(row)


def _kernels_over_nested(row: Row) -> str:
    over = lambda nested: f"{row[JAX_REVOLVE]['kernels'] / nested['kernels']:.2f}"  # noqa: E731
    return of(NESTED, over, "none")(row)


def _is_vmap(run: Run) -> bool:
    return run["workload"].startswith("vmap")


def _ours(*columns: Column) -> list[Column]:
    return [(title, of(JAX_REVOLVE, cell)) for title, cell in columns]


COMPILED = "with jax {machine[versions][jax]} (`benchmarks/gpu_programs.py`)"
MEMORY: Cell = lambda run: f"{run['MB']:{'.3g' if run['MB'] < 1000 else '.0f'}} MB"  # noqa: E731
LAUNCHED: list[Column] = [("memory", MEMORY), ("kernels", "{kernels}"), ("waits", "{waits}")]
LOOP: Column = ("loop", "{workload}")
DEVICE: Column = ("device", _device)

TABLES = {
    "gpu-programs": Table(
        f"Gradients compiled for a GPU {COMPILED}, with the default budget and with 30 to 2 %"
        " of the memory of `lax.scan`: temporaries, kernels and waits. The ratio"
        " is of kernels, over the nested scans with the fewest levels that need no more memory."
        " Where none fits, the memory of the leanest is shown:",
        _by_budget,
        [
            *_ours(DEVICE, LOOP, ("budget", _budget), ("plan", "{detail}"), *LAUNCHED),
            *_ours(("copies of buffers", "{copies_of_buffers}")),
            ("nested scans", _memory_of_nested),
            ("blocks", of(NESTED, "{detail}", "none")),
            ("kernels / nested", _kernels_over_nested),
            ("`lax.scan`", of(LAX_SCAN.name, "{MB:.3g} MB")),
            ("kernels, `lax.scan`", of(LAX_SCAN.name, "{kernels}")),
        ],
    ),
    "gpu-equinox": Table(
        f"Equinox's loop {COMPILED}, with about as many states as jax_revolve with 10 % of the"
        " memory of `lax.scan`. Its loop of unknown length is taken to run as often as an optimal"
        " schedule evaluates steps, and the longer branch to be taken each time:",
        lambda results: [r for r in find(results.runs, contender=EQUINOX) if not _is_vmap(r)],
        [LOOP, *LAUNCHED],
    ),
    "gpu-host-memory": Table(
        f"Checkpoints in the host's memory {COMPILED}:",
        lambda results: [r for r in results.runs if str(r["share"]).startswith("HostMemory")],
        [
            *(DEVICE, LOOP),
            ("checkpoints", "{detail}"),
            ("on the device", "{MB:.3g} MB"),
            ("on the host", lambda run: f"{run['host_bytes'] / 1e6:.3g} MB"),
            *LAUNCHED[1:],
            ("transfers in the program", "{transfers}"),
            ("kernels during each", lambda run: ", ".join(map(str, run["beside_transfers"]))),
        ],
    ),
    "gpu-while-loops": Table(
        f"A while loop under `vmap` {COMPILED}. Its loops of unknown length are taken to run as"
        " often as the plan evaluates steps:",
        lambda results: filter(_is_vmap, results.runs),
        [
            DEVICE,
            ("gradient of", "{contender}"),
            *LAUNCHED,
            ("loops of unknown length", "{dynamic_loops}"),
        ],
    ),
}
FIGURES = {"gpu-over": _most_over_a_budget}
BENCHMARK = Benchmark("programs", measurements, TABLES, FIGURES, described="gpu")
