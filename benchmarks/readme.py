"""Writes the tables of the README from the benchmarks' results, each between its markers.

python benchmarks/readme.py
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scan-cpu.json"
WHILE_RESULTS = HERE / "results" / "while-cpu.json"
BUDGET_RESULTS = HERE / "results" / "budget-cpu.json"
README = HERE.parent / "README.md"
BEGIN, END = "<!-- made by benchmarks/readme.py -->\n", "<!-- end -->\n"
WHILE_BEGIN = "<!-- while loops, made by benchmarks/readme.py -->\n"
WHILE_END = "<!-- end of while loops -->\n"
BUDGET_BEGIN = "<!-- budget, made by benchmarks/readme.py -->\n"
BUDGET_END = "<!-- end of budget -->\n"

SHOWN = [
    ("stencil, n = 1000, width 20000", 63),
    ("stencil, n = 1000, width 20000", 10),
    ("stencil, n = 100000, width 1000", 63),
    ("rnn, n = 1000, batch 16, width 512", 63),
    ("lstm, n = 1000, batch 16, width 128", 44),
]
SHOWN_WHILE = [
    ("stencil, 1000 steps of 4096, width 20000", 63),
    ("stencil, 1000 steps of 4096, width 20000", 10),
    ("stencil, 10000 steps of 16384, width 1000", 63),
    ("rnn, 1000 steps of 4096, batch 16, width 128", 30),
    ("lstm, 1000 steps of 4096, batch 16, width 128", 28),
]
SHOWN_WITH_BUDGET = [
    "lstm, n = 1000, batch 16, width 128",
    "lstm, n = 1000, batch 32, width 512",
]
WAYS = [
    ("`lax.scan`, stores everything", "lax.scan", None),
    ("`memory=` 5% of that", "jax_revolve", 0.05),
    ("`memory=` 2% of that", "jax_revolve", 0.02),
    ("pure Revolve in 5%: single steps", "pure Revolve", 0.05),
    ("best nested `jax.checkpoint` scans, as ours in 5%", "nested remat scan", 0.05),
    ("Equinox's checkpointed loop, as ours in 5%", "equinox checkpointed", 0.05),
]


def table(record: dict[str, Any]) -> str:
    """The gradient's time and memory, ours against `lax.scan` and Equinox at equal checkpoints."""
    machine = record["machine"]
    gradients = [m for m in record["measurements"] if m["quantity"] == "gradient"]
    rows = [row for shown in SHOWN if (row := _row(gradients, *shown))]
    head = [
        f"Gradients on {machine['cores']} CPU cores with jax {machine['versions']['jax']}, times as"
        " ratios of medians, ours over the other's (`benchmarks/scan.py`):\n",
        "| loop | checkpoints | memory, `lax.scan` | memory, ours | time / `lax.scan` "
        "| time / Equinox's |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def _row(gradients: list[dict[str, Any]], workload: str, checkpoints: int) -> str | None:
    runs = {(m["contender"], m["checkpoints"]): m for m in gradients if m["workload"] == workload}
    ours, plain = runs.get(("jax_revolve", checkpoints)), runs.get(("lax.scan", None))
    if ours is None or plain is None:
        return None
    ratios = ours["time_ratios"]
    cells = [
        workload,
        str(checkpoints),
        f"{plain['temp_bytes'] / 1e6:.1f} MB",
        f"{ours['temp_bytes'] / 1e6:.2f} MB",
        f"{ratios['plain']:.2f}",
        f"{ratios['equinox']:.2f}" if ratios["equinox"] else "",
    ]
    return "| " + " | ".join(cells) + " |"


def while_table(record: dict[str, Any]) -> str:
    """The gradient's time and memory, ours against Equinox's two loops."""
    versions = record["machine"]["versions"]
    gradients = [m for m in record["measurements"] if m["quantity"] == "gradient"]
    rows = [row for shown in SHOWN_WHILE if (row := _while_row(gradients, *shown))]
    head = [
        f"Gradients of while loops on {record['machine']['cores']} CPU cores with jax"
        f" {versions['jax']} and Equinox {versions['equinox']}, times as ratios of medians, ours"
        " over the other's (`benchmarks/while_loop.py`):\n",
        "| loop | checkpoints | memory, ours | memory, Equinox's checkpointed "
        "| time / Equinox's checkpointed | time / Equinox's bounded |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def _while_row(gradients: list[dict[str, Any]], workload: str, checkpoints: int) -> str | None:
    runs = {(m["contender"], m["checkpoints"]): m for m in gradients if m["workload"] == workload}
    ours = runs.get(("jax_revolve", checkpoints))
    equinox = runs.get(("equinox checkpointed", checkpoints))
    if ours is None or equinox is None:
        return None
    cells = [
        workload,
        str(checkpoints),
        f"{ours['temp_bytes'] / 1e6:.2f} MB",
        f"{equinox['temp_bytes'] / 1e6:.2f} MB",
        f"{ours['time_ratios']['equinox']:.2f}",
        f"{ours['time_ratios']['bounded']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def budget_table(record: dict[str, Any]) -> str:
    """The memory and time of the gradient, both over those of storing everything."""
    machine = record["machine"]
    gradients = [m for m in record["measurements"] if m["quantity"] == "gradient"]
    columns = [_budget_column(gradients, workload) for workload in SHOWN_WITH_BUDGET]
    titles = [f"memory, {name} | time" for name in SHOWN_WITH_BUDGET]
    head = [
        f"Gradients within a budget on {machine['cores']} CPU cores with jax"
        f" {machine['versions']['jax']}, over those that store everything"
        " (`benchmarks/budget.py`):\n",
        f"| | {' | '.join(titles)} |",
        "|---" * (1 + 2 * len(titles)) + "|",
    ]
    rows = zip((name for name, _, _ in WAYS), *columns, strict=True)
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _budget_column(gradients: list[dict[str, Any]], workload: str) -> list[str]:
    """Memory and time of each way to run the workload; of several runs the quickest counts."""
    runs = [m for m in gradients if m["workload"] == workload]
    everything = next(m["temp_bytes"] for m in runs if m["contender"] == "lax.scan")
    cells = []
    for _, contender, share in WAYS:
        budget = None if share is None else int(share * everything)
        found = [m for m in runs if (m["contender"], m["budget"]) == (contender, budget)]
        best = min(found, key=lambda m: m["median_ms"])
        memory = f"{best['temp_bytes'] / everything:.1%}"
        if share is None:
            memory = f"{everything / 1e6:.1f} MB"
        cells.append(f"{memory} | {best['time_ratios']['plain']:.2f}")
    return cells


def with_table(readme: str, record: dict[str, Any]) -> str:
    """The README with a fresh table of scans between its markers."""
    return _between(readme, BEGIN, END, table(record))


def with_while_table(readme: str, record: dict[str, Any]) -> str:
    """The README with a fresh table of while loops between its markers."""
    return _between(readme, WHILE_BEGIN, WHILE_END, while_table(record))


def with_budget_table(readme: str, record: dict[str, Any]) -> str:
    """The README with a fresh table of budgets between its markers."""
    return _between(readme, BUDGET_BEGIN, BUDGET_END, budget_table(record))


def _between(text: str, begin: str, end: str, content: str) -> str:
    before, rest = text.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def main() -> None:
    readme = with_table(README.read_text(), json.loads(RESULTS.read_text()))
    readme = with_while_table(readme, json.loads(WHILE_RESULTS.read_text()))
    README.write_text(with_budget_table(readme, json.loads(BUDGET_RESULTS.read_text())))


if __name__ == "__main__":
    main()
