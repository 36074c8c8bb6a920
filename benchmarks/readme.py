"""Writes the table of the README from the benchmark's results, between two markers.

python benchmarks/readme.py
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scan-cpu.json"
README = HERE.parent / "README.md"
BEGIN, END = "<!-- made by benchmarks/readme.py -->\n", "<!-- end -->\n"

SHOWN = [
    ("stencil, n = 1000, width 20000", 63),
    ("stencil, n = 1000, width 20000", 10),
    ("stencil, n = 100000, width 1000", 63),
    ("rnn, n = 1000, batch 16, width 512", 63),
    ("lstm, n = 1000, batch 16, width 128", 44),
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


def with_table(readme: str, record: dict[str, Any]) -> str:
    """The README with a fresh table between the markers."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + table(record) + END + rest.split(END)[1]


def main() -> None:
    record = json.loads(RESULTS.read_text())
    README.write_text(with_table(README.read_text(), record))


if __name__ == "__main__":
    main()
