"""Writes the tables of the documentation from the benchmarks' results, each between its markers,
and copies the picture of the first page.

python benchmarks/pages.py
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import readme

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs"
BLOCK = re.compile(
    r"(<!-- table of (?P<name>[\w-]+), made by benchmarks/pages.py -->\n)"
    r".*?(<!-- end of table -->)",
    re.DOTALL,
)

HEADLINE = "headline-cpu.png"
"""The picture of the first page, of which a site needs a copy among its pages."""

Record = dict[str, Any]


class Source(NamedTuple):
    """The file of results that a table comes from, and what makes it."""

    results: str
    table: Callable[[Record], str]

    def __call__(self) -> str:
        file = HERE / "results" / f"{self.results}.json"
        return "\n" + self.table(json.loads(file.read_text())) + "\n"


CHECKPOINTED = [
    ("stencil, n = 1000, width 20000", 63),
    ("rnn, n = 1000, batch 16, width 512", 63),
    ("lstm, n = 1000, batch 16, width 128", 44),
]
BOUNDS = "bounds, 8 steps of 16 or 1024 or 1048576, stencil of width 20000"
SECOND_ORDER = "second-order, 200 steps of 256, stencil of width 2000"
PROGRESS = [
    "stencil, 1000 x 20000",
    "stencil, every carry, 1000 x 20000",
    "stencil, while, 1000 x 20000",
    "scalar, 100000 x 1",
]


COMPILED = {"stencil": "scan", "stencil, while": "while loop"}
COMPILED_BY = [
    ("stencil", "lax.scan", "", "`lax.scan(f)`"),
    ("stencil", "lax.scan(checkpoint)", "", "`lax.scan(jax.checkpoint(f))`"),
    ("stencil", "nested remat scan", "", "two nested scans under `jax.checkpoint`"),
    ("stencil", "equinox checkpointed", "", "Equinox's checkpointed loop"),
    ("stencil", "jax_revolve", "by default", "`checkpointed_scan(f)`"),
    ("stencil", "jax_revolve", "memory=", "`checkpointed_scan(f, memory=)`, 100 carries"),
    ("stencil, while", "equinox checkpointed", "", "Equinox's checkpointed loop"),
    ("stencil, while", "jax_revolve", "", "`bounded_while_loop`"),
]


def checkpointed_table(record: Record) -> str:
    """Gradients of scans under `jax.checkpoint`, of single steps and nested, and of ours."""
    rows = []
    for workload, checkpoints in CHECKPOINTED:
        contenders = {
            "`lax.scan(f)`": ("lax.scan", None),
            "`lax.scan(jax.checkpoint(f))`": ("lax.scan(checkpoint)", None),
            "the quickest nested scans tried beside ours": ("nested remat scan", checkpoints),
            f"`checkpointed_scan(f, checkpoints={checkpoints})`": ("jax_revolve", checkpoints),
        }
        for name, contender in contenders.items():
            run = min(_runs(record, workload, "gradient")[contender], key=lambda m: m["median_ms"])
            time = f"{run['time_ratios']['plain']:.2f}"
            rows.append([workload, name, _megabytes(run), time])
    return _table(
        f"Gradients {_machine(record)}, times as ratios of medians, over those of `lax.scan`"
        " (`benchmarks/scan.py`):",
        ["loop", "gradient of", "memory", "time"],
        rows,
    )


def bounds_table(record: Record) -> str:
    """The gradient of a loop of eight steps under three bounds."""
    rows = []
    for m in record["measurements"]:
        if m["workload"] != BOUNDS or m["contender"] != "jax_revolve" or m["quantity"] == "value":
            continue
        chosen = "by default" if "default" in m["quantity"] else "given"
        ratio = m["time_ratios"]["least bound"]
        rows.append(
            [str(m["max_steps"]), f"{m['checkpoints']}, {chosen}", _megabytes(m), f"{ratio:.2f}"]
        )
    return _table(
        f"The gradient of a loop that stops after 8 steps, {_machine(record)}, times over that with"
        " the least bound (`benchmarks/while_loop.py`):",
        ["`max_steps`", "checkpoints", "memory", "time"],
        rows,
    )


def second_order_table(record: Record) -> str:
    """A Hessian-vector product through a loop that stops by itself."""
    names = {
        "masked lax.scan": "`lax.scan` up to the bound, steps that are done masked",
        "equinox bounded": 'Equinox\'s loop, `kind="bounded"`',
        "equinox checkpointed": 'Equinox\'s loop, `kind="checkpointed"`',
        "jax_revolve": "`bounded_while_loop`",
    }
    rows = [
        [names[m["contender"]], _megabytes(m), f"{m['time_ratios']['bounded']:.2f}"]
        for runs in _runs(record, SECOND_ORDER, "hvp").values()
        for m in runs
    ]
    return _table(
        f"A Hessian-vector product through 200 steps of 256, of a stencil of width 2000,"
        f" {_machine(record)}, times over Equinox's (`benchmarks/while_loop.py`):",
        ["loop", "memory", "time"],
        rows,
    )


def second_order_of_scans_table(record: Record) -> str:
    """A Hessian-vector product through scans, of those that were measured."""
    names = {
        "lax.scan": "`lax.scan(f)`",
        "lax.scan(checkpoint)": "`lax.scan(jax.checkpoint(f))`",
        "nested remat scan": "the quickest nested scans tried beside ours",
        "equinox checkpointed": "Equinox's checkpointed loop",
        "jax_revolve": "`checkpointed_scan(f)`",
    }
    rows = []
    for workload, _ in CHECKPOINTED:
        runs = [run for found in _runs(record, workload, "hvp").values() for run in found]
        for contender, name in names.items():
            chosen = [run for run in runs if run["contender"] == contender]
            if chosen:
                run = min(chosen, key=lambda m: m["median_ms"])
                time = f"{run['time_ratios']['plain']:.2f}"
                rows.append([workload, name, _megabytes(run), time])
    if not rows:
        return ""
    return _table(
        f"Hessian-vector products, forward over reverse, {_machine(record)}, times as ratios of"
        " medians, over those of `lax.scan` (`benchmarks/scan.py`):",
        ["loop", "product through", "memory", "time"],
        rows,
    )


def compiling_table(record: Record) -> str:
    """Size and compile time of gradients of one loop over its length, where all were measured."""
    programs = [p for p in record["programs"] if p["family"] in COMPILED]
    lengths = sorted({p["length"] for p in programs})
    lengths = [lengths[0], lengths[len(lengths) // 2], lengths[-1]]
    rows = []
    for family, contender, detail, name in COMPILED_BY:
        found = {
            p["length"]: p
            for p in programs
            if (p["family"], p["contender"]) == (family, contender) and detail in p["detail"]
        }
        if not found.keys() >= set(lengths):
            continue
        sizes = [str(found[n]["instructions"]) for n in lengths]
        times = [f"{_compile_seconds(found[n]):.2f} s" for n in lengths]
        rows.append([COMPILED[family], name, *sizes, *times])
    first, *rest = [f"n = {n}" for n in lengths]
    return _table(
        f"Gradients of a stencil of width 1000 {_machine(record)}: instructions of the compiled"
        " program, and seconds of tracing, lowering and compiling it (`benchmarks/compiling.py`):",
        ["", "gradient of", f"instructions, {first}", *rest, f"time, {first}", *rest],
        rows,
    )


def _compile_seconds(program: Record) -> float:
    return sum(program[f"{phase}_seconds"] for phase in ("trace", "lower", "compile"))


def progress_table(record: Record) -> str:
    """What bars cost: time with over time without."""
    ratios = {(c["loop"], c["program"]): c["ratio"] for c in record["comparisons"]}
    rows = [
        [loop, *(f"{ratios[loop, program]:.2f}" for program in ("value", "gradient"))]
        for loop in PROGRESS
    ]
    return _table(
        f"Time with bars over time without, {_machine(record)} (`benchmarks/progress.py`):",
        ["loop, steps x width", "value", "gradient"],
        rows,
    )


def layers_table(record: Record) -> str:
    """Gradients of models: plain, under `jax.checkpoint`, and of ours."""
    rows = []
    for m in record["measurements"]:
        how = m["contender"]
        if m["budget"] is not None:
            how += f", memory={m['budget'] / 1e6:.1f} MB"
        elif m["checkpoints"] is not None:
            how += f", checkpoints={m['checkpoints']}"
        time = f"{m['time_ratios']['plain']:.2f}"
        rows.append([m["workload"], how, _megabytes(m), f"{m['memory_ratio']:.3f}", time])
    return _table(
        f"Gradients of models {_machine(record)}, memory and time over the plain model's "
        "(`benchmarks/layers.py`):",
        ["model", "layers run by", "memory", "share", "time"],
        rows,
    )


def diffrax_table(record: Record) -> str:
    """Solves: forward mode and gradients, by every adjoint."""
    rows = []
    for m in record["measurements"]:
        if m["quantity"] == "value":
            continue
        s = "" if m["checkpoints"] is None else str(m["checkpoints"])
        rival = {"jvp": "ForwardMode", "gradient": "RecursiveCheckpointAdjoint"}[m["quantity"]]
        ratio = m["time_ratios"][rival]
        adjoint = "RevolveAdjoint" if m["contender"] == "jax_revolve" else m["contender"]
        time = f"{m['median_ms']:.1f} ms"
        over = "" if ratio is None else f"{ratio:.2f}"
        rows.append([m["workload"], m["quantity"], f"`{adjoint}`", s, _megabytes(m), time, over])
    return _table(
        f"Solves {_machine(record)}; the last column is the time over `ForwardMode`'s, or for "
        "gradients over that of `RecursiveCheckpointAdjoint` with as many checkpoints "
        "(`benchmarks/diffrax_adjoints.py`):",
        ["problem", "derivative", "adjoint", "checkpoints", "memory", "time", "ratio"],
        rows,
    )


def third_party_table(record: Record) -> str:
    """Programs of other packages before and after `checkpoint_loops`, one a row."""
    programs: dict[str, dict[str, Record]] = {}
    for m in record["measurements"]:
        programs.setdefault(m["program"], {})[m["contender"]] = m
    rows = []
    for found in programs.values():
        before = found.get("jax.grad")
        default = found["checkpoint_loops"]
        within = found.get("checkpoint_loops(memory=)")
        versions = ", ".join(f"{name} {number}" for name, number in default["versions"].items())
        rows.append(
            [
                f"{default['program']}: {default['size']} ({versions})",
                str(default["loops"]),
                *_before(before),
                *_after(default, before),
                *_after(within, before),
                _relative(default["difference"]),
                _relative(default["rounding"]),
            ]
        )
    return _table(
        f"Gradients of programs of other packages {_machine(record)}: alone, with"
        " `checkpoint_loops` by default, and with `memory=` a tenth of the first column"
        " (`benchmarks/third_party.py`):",
        [
            *("program", "loops", "memory", "time", "by default", "time", "`memory=`", "time"),
            *("difference", "rounding"),
        ],
        rows,
    )


def _before(run: Record | None) -> list[str]:
    return ["no gradient", ""] if run is None else [_megabytes(run), f"{run['median_ms']:.0f} ms"]


def _after(run: Record | None, before: Record | None) -> list[str]:
    """Memory, and time as a ratio where there is one to compare with."""
    if run is None:
        return ["", ""]
    if before is None:
        return [_megabytes(run), f"{run['median_ms']:.0f} ms"]
    return [_megabytes(run), f"{run['median_ms'] / before['median_ms']:.2f}"]


def _relative(difference: float | None) -> str:
    """A relative difference of numbers in single precision."""
    if difference is None:
        return ""
    return "< 1e-07" if difference < 1e-7 else f"{difference:.0e}"


def tpu_table(record: Record) -> str:
    """What programs compiled for a TPU hold, on the device and on its host."""
    rows = [
        [
            f"`{p['loop']}`",
            f"`{p['options']}`" if p["options"] else "",
            f"{p['device_states']:.1f}",
            f"{p['host_states']:.0f}",
        ]
        for p in record["programs"]
    ]
    machine = record["machine"]
    return _table(
        f"Gradients of 1000 steps of a stencil, compiled for a TPU ({machine['compiled_for']}) "
        f"with jax {machine['versions']['jax']}, temporaries in states of 16 MiB "
        "(`benchmarks/tpu_programs.py`):",
        ["loop", "options", "on the device", "on the host"],
        rows,
    )


def storage_table(record: Record) -> str:
    """Gradients with checkpoints in each place."""
    rows = []
    for m in record["measurements"]:
        place = m["contender"].removeprefix("jax_revolve, ")
        place = place if " " in place else f"`{place}`"
        time = f"{m['time_ratios']['on the device']:.2f}"
        rows.append([m["workload"], place, _megabytes(m), time])
    return _table(
        f"Gradients with 10 checkpoints {_machine(record)}, times over that with all of them on "
        "the device (`benchmarks/storage.py`):",
        ["loop", "checkpoints", "memory", "time"],
        rows,
    )


def _runs(record: Record, workload: str, quantity: str) -> dict[tuple[str, int | None], list[Any]]:
    """What was measured, by contender and checkpoints; nested scans were tried in several ways."""
    found: dict[tuple[str, int | None], list[Any]] = {}
    for m in record["measurements"]:
        if (m["workload"], m["quantity"]) == (workload, quantity):
            found.setdefault((m["contender"], m["checkpoints"]), []).append(m)
    return found


def _machine(record: Record) -> str:
    machine = record["machine"]
    return f"on {machine['cores']} CPU cores with jax {machine['versions']['jax']}"


def _megabytes(run: Record) -> str:
    return f"{run['temp_bytes'] / 1e6:.2f} MB"


def _table(title: str, head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join([title, "", *lines]) + "\n"


TABLES = {
    "scans": Source("scan-cpu", readme.table),
    "while-loops": Source("while-cpu", readme.while_table),
    "budgets": Source("budget-cpu", readme.budget_table),
    "checkpointed-scans": Source("scan-cpu", checkpointed_table),
    "bounds": Source("while-cpu", bounds_table),
    "second-order": Source("while-cpu", second_order_table),
    "second-order-of-scans": Source("scan-cpu", second_order_of_scans_table),
    "compiling": Source("compiling-cpu", compiling_table),
    "layers": Source("layers-cpu", layers_table),
    "diffrax": Source("diffrax-cpu", diffrax_table),
    "third-party": Source("third-party-cpu", third_party_table),
    "tpu-programs": Source("programs-tpu", tpu_table),
    "progress": Source("progress-cpu", progress_table),
    "storage": Source("storage-cpu", storage_table),
}


def with_tables(page: str) -> str:
    """The page with fresh tables between their markers."""
    return BLOCK.sub(lambda match: match[1] + TABLES[match["name"]]() + match[3], page)


def main() -> None:
    for page in PAGES.rglob("*.md"):
        page.write_text(with_tables(page.read_text()))
    shutil.copyfile(HERE / "results" / HEADLINE, PAGES / "pictures" / HEADLINE)


if __name__ == "__main__":
    main()
