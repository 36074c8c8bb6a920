"""Writes each table and each figure between its markers in the README and in `docs`."""

import re
from pathlib import Path

from benchmarks.report.accelerators import ACCELERATORS
from benchmarks.report.figures import FIGURES
from benchmarks.report.fronts import FRONTS
from benchmarks.report.gpu import GPU
from benchmarks.report.loops import LOOPS
from benchmarks.report.programs import PROGRAMS

ROOT = Path(__file__).parents[2]
MEASURED = {name: table for name, table in ACCELERATORS.items() if table.files}
"""Nothing has been measured on an accelerator yet."""

TABLES = LOOPS | FRONTS | PROGRAMS | GPU | MEASURED
BLOCK = re.compile(
    r"(<!-- table of (?P<name>[\w-]+), made by benchmarks/report -->\n+)"
    r".*?(\n+<!-- end of table -->)",
    re.DOTALL,
)
FIGURE = re.compile(r"(<!-- figure (?P<name>[\w-]+) -->)[^<]*(<!-- /figure -->)")


def with_tables(page: str) -> str:
    """The page with fresh tables and figures between their markers."""
    page = BLOCK.sub(lambda match: f"{match[1]}{TABLES[match['name']]}{match[3]}", page)
    return FIGURE.sub(lambda match: f"{match[1]}{FIGURES[match['name']]()}{match[3]}", page)


def write() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        page.write_text(with_tables(page.read_text()))
