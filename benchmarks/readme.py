"""Writes the tables of the README from the benchmarks' results, each between its markers.

python benchmarks/readme.py
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scan-cpu.json"
WHILE_RESULTS = HERE / "results" / "while-cpu.json"
README = HERE.parent / "README.md"
BEGIN, END = "<!-- made by benchmarks/readme.py -->\n", "<!-- end -->\n"
WHILE_BEGIN = "<!-- while loops, made by benchmarks/readme.py -->\n"
WHILE_END = "<!-- end of while loops -->\n"

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


def with_table(readme: str, record: dict[str, Any]) -> str:
    """The README with a fresh table of scans between its markers."""
    return _between(readme, BEGIN, END, table(record))


def with_while_table(readme: str, record: dict[str, Any]) -> str:
    """The README with a fresh table of while loops between its markers."""
    return _between(readme, WHILE_BEGIN, WHILE_END, while_table(record))


def _between(text: str, begin: str, end: str, content: str) -> str:
    before, rest = text.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def main() -> None:
    readme = with_table(README.read_text(), json.loads(RESULTS.read_text()))
    README.write_text(with_while_table(readme, json.loads(WHILE_RESULTS.read_text())))


if __name__ == "__main__":
    main()
