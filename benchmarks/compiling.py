"""What it takes to compile the derivatives of a loop, over the loop's length and for steps of many
kinds: no loop is run.

JAX's caches and those of jax_revolve are cleared before each time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import diffrax
import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks.contenders import scans, while_loops
from benchmarks.contenders.searches import squarest
from benchmarks.report.results import Results, Run, find
from benchmarks.report.table import Cell, Column, Table, of
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import (
    PHASES,
    Compiler,
    Contender,
    Program,
    Record,
    Workload,
    bytes_of,
)
from benchmarks.runner.timing import LEAST_ROUNDS
from benchmarks.workloads.recurrences import (
    Recurrence,
    of_state,
    reaction_diffusion,
    scanned,
    stencil,
    until_limit,
)
from benchmarks.workloads.steps import gru, transformer
from jax_revolve import bounded_while_loop, checkpointed_scan, plan
from jax_revolve.schedule import selection

LENGTHS = (10, 1000, 100_000)
CARRIES = 100
"""The budget of `memory=`, in carries: short loops may be taped whole in it, long ones may not."""

BY_DEFAULT = Contender(scans.JAX_REVOLVE, checkpointed_scan, detail="by default")
SECOND = ", second order"
DERIVATIVES = ("gradient", "hvp", "grad of grad")


def diffrax_step(length: int, width: int) -> Recurrence:
    """Steps of Tsitouras' method, by Diffrax, in a form that has derivatives of any order."""
    solver, term = (
        diffrax.Tsit5(scan_kind="bounded"),
        diffrax.ODETerm(lambda t, u, _: reaction_diffusion(u) - u),
    )

    def step(_: None, u: jax.Array, __: None) -> jax.Array:
        state = solver.init(term, 0.0, 0.1, u, None)
        return solver.step(term, 0.0, 0.1, u, None, state, made_jump=False)[0]

    return of_state("Diffrax step", f"width {width}", length, step, jnp.ones(width))


def measurements(quick: bool) -> Iterator[Measurement]:
    """Inputs of long loops are large, so they are made one after the other."""
    lengths, width = ((4,), 16) if quick else (LENGTHS, 1000)
    for n in lengths:
        yield _measurement(scanned(stencil(n, width)), ("gradient",), of_scan(stencil(n, width)))
        bounded = until_limit(stencil(n, width), n)
        workload = replace(bounded, family="stencil, while")
        yield _measurement(workload, ("gradient",), of_while_loop(n))
    n, size, heads = (4, 2, 4) if quick else (1000, 16, 128)
    bodies = [gru(n, size, heads), diffrax_step(n, width), transformer(n, size, heads)]
    for body in [*(stencil(n, width) for n in lengths), *bodies]:
        workload = replace(scanned(body), family=f"{body.family}{SECOND}")
        contenders = [scans.LAX_SCAN, scans.nested(squarest(body.length), True), BY_DEFAULT]
        yield _measurement(workload, DERIVATIVES, contenders)


def of_scan(recurrence: Recurrence) -> list[Contender]:
    n, init = recurrence.length, (recurrence.active | recurrence.passive)["init"]
    within = partial(checkpointed_scan, memory=CARRIES * bytes_of(init))
    others = [scans.LAX_SCAN, scans.REMAT, scans.nested(squarest(n), True)]
    ours = [BY_DEFAULT, Contender(scans.JAX_REVOLVE, within, detail="memory=")]
    return [*others, scans.equinox(plan(n).checkpoints), *ours]


def of_while_loop(n: int) -> list[Contender]:
    """Equinox's has as many checkpoints as jax_revolve's has by default."""
    loop = partial(bounded_while_loop, max_steps=n, throw=False)
    theirs = while_loops.equinox(n, while_loops.default_checkpoints(n))
    return [theirs, Contender(scans.JAX_REVOLVE, loop)]


def _measurement(
    workload: Workload, quantities: Sequence[str], contenders: list[Contender]
) -> Measurement:
    compiled = partial(_compiled, workload, quantities, contenders)
    return Measurement(f"{workload.name}: {', '.join(quantities)}", compiled)


def _compiled(
    workload: Workload, quantities: Sequence[str], contenders: list[Contender], quick: bool
) -> list[Record]:
    """Each from nothing to a program, in turns, again and again. The first time is left out: in it,
    modules are imported and much else is set up."""
    pairs = [(contender, quantity) for contender in contenders for quantity in quantities]
    programs: list[list[Program]] = [[] for _ in pairs]
    for _ in tqdm(range(2 if quick else 1 + LEAST_ROUNDS), desc="Compiling", leave=False):
        for (contender, quantity), of_pair in zip(pairs, programs, strict=True):
            jax.clear_caches()
            selection.quickest.cache_clear()
            of_pair.append(Compiler(workload, quantity)(contender))
    return [
        {
            "family": workload.family,
            "workload": workload.name,
            "length": workload.length,
            "contender": contender.name,
            "detail": contender.detail,
            "quantity": quantity,
            "rounds": len(of_pair) - 1,
            "instructions": of_pair[-1].instructions,
            "temp_bytes": of_pair[-1].temp_bytes,
            **{phase: median(p.phases[phase] for p in of_pair[1:]) for phase in PHASES},
        }
        for (contender, quantity), of_pair in zip(pairs, programs, strict=True)
    ]


ROWS = [
    ("stencil", scans.LAX_SCAN.name, "", "`lax.scan(f)`"),
    ("stencil", scans.REMAT.name, "", "`lax.scan(jax.checkpoint(f))`"),
    ("stencil", scans.NESTED, "", "two nested scans under `jax.checkpoint`"),
    ("stencil", scans.EQUINOX, "", "Equinox's checkpointed loop"),
    ("stencil", scans.JAX_REVOLVE, "by default", "`checkpointed_scan(f)`"),
    ("stencil", scans.JAX_REVOLVE, "memory=", "`checkpointed_scan(f, memory=)`, 100 carries"),
    ("stencil, while", scans.EQUINOX, "", "Equinox's checkpointed loop"),
    ("stencil, while", scans.JAX_REVOLVE, "", "`bounded_while_loop`"),
]


def _over_lengths(results: Results) -> Iterator[dict[int | str, Run | str]]:
    for family, contender, detail, label in ROWS:
        runs = find(results.runs, family=family, contender=contender)
        kind = "while loop" if "while" in family else "scan"
        of_lengths = {run["length"]: run for run in runs if detail in run["detail"]}
        yield {"kind": kind, "label": label, **of_lengths}


def _twice_over_lengths(results: Results) -> Iterator[dict[int | str, tuple[Run, Run] | str]]:
    """Gradients and Hessian-vector products, by length."""
    runs = find(results.runs, family=f"stencil{SECOND}")
    labels = {scans.LAX_SCAN.name: "`lax.scan`", scans.JAX_REVOLVE: "jax_revolve"}
    for contender, label in labels.items():
        first, second = (find(runs, contender=contender, quantity=q) for q in ("gradient", "hvp"))
        pairs = zip(first, second, strict=True)
        yield {"label": label, **{pair[0]["length"]: pair for pair in pairs}}


def _bodies(results: Results) -> Iterator[dict[str, Run]]:
    """The derivatives of each body by each contender, of loops of a thousand steps."""
    for last in find(results.runs, quantity="grad of grad", length=1000):
        same = {name: last[name] for name in ("family", "contender", "length")}
        yield {run["quantity"]: run for run in find(results.runs, **same)}


def _time(run: Run) -> float:
    return sum(run[phase] for phase in PHASES)


def _in_words(run: Run) -> str:
    trace, lower, compile = (run[phase] for phase in PHASES)
    return f"{run['instructions']}, {trace + lower:.2f} s, {compile:.2f} s"


def _columns(title: str, cell: Cell) -> list[Column]:
    """The first of the columns says what they show."""
    titles = [f"{title}, n = {LENGTHS[0]}", *(f"n = {n}" for n in LENGTHS[1:])]
    return [(title, of(n, cell)) for title, n in zip(titles, LENGTHS, strict=True)]


TABLES = {
    "compiling": Table(
        "Gradients of a stencil of width 1000 {where}: instructions of the compiled program, and"
        " seconds of tracing, lowering and compiling it (`benchmarks/compiling.py`):",
        _over_lengths,
        [
            ("loop", of("kind", str)),
            ("gradient of", of("label", str)),
            *_columns("instructions", "{instructions}"),
            *_columns("time", lambda run: f"{_time(run):.1f} s"),
        ],
    ),
    "compiling-second-order": Table(
        "Hessian-vector products of that stencil, forward over reverse, {where}: instructions of"
        " the compiled program, and the time to make it over the gradient's"
        " (`benchmarks/compiling.py`):",
        _twice_over_lengths,
        [
            ("loop", of("label", str)),
            *_columns("instructions", lambda pair: f"{pair[1]['instructions']}"),
            *_columns("time", lambda pair: f"{_time(pair[1]) / _time(pair[0]):.1f}"),
        ],
    ),
    "compiling-bodies": Table(
        "Derivatives of loops of 1000 steps of many kinds {where}: instructions of the compiled"
        " program, seconds of tracing and lowering it, and of compiling it"
        " (`benchmarks/compiling.py`):",
        _bodies,
        [
            ("step", lambda runs: runs["gradient"]["family"].removesuffix(SECOND)),
            ("loop", of("gradient", "{contender}")),
            *((quantity, of(quantity, _in_words)) for quantity in DERIVATIVES),
        ],
    ),
}
BENCHMARK = Benchmark("compiling", measurements, TABLES)
