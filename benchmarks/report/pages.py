"""Writes each table and each figure between its markers in the README and in `docs`."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from benchmarks import BENCHMARKS, BY_NAME
from benchmarks.report.results import FOLDER, Results, load
from benchmarks.report.table import tidy

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(<!-- table of (?P<name>[\w-]+), made by benchmarks/report -->\n+)"
    r".*?(\n+<!-- end of table -->)",
    re.DOTALL,
)
FIGURE = re.compile(r"(<!-- figure (?P<name>[\w-]+) -->)[^<]*(<!-- /figure -->)")


@cache
def declared() -> dict[str, tuple[str, Callable[[Results], str]]]:
    """What makes each table and each figure, and of which file of results, if that has rows."""
    found: dict[str, tuple[str, Callable[[Results], str]]] = {}
    for name in (*BENCHMARKS, *BY_NAME):
        benchmark = import_module(f"benchmarks.{name}").BENCHMARK
        if (FOLDER / f"{benchmark.shown}.json").exists():
            results = load(benchmark.shown)
            tables = {k: t.of for k, t in benchmark.tables.items() if any(t.rows(results))}
            makers = tables | benchmark.figures
            found |= {key: (benchmark.shown, make) for key, make in makers.items()}
    return found


def with_tables(page: str) -> str:
    """The page with fresh tables and figures between their markers."""

    def made(match: re.Match[str]) -> str:
        results, make = declared()[match["name"]]
        return make(load(results))

    page = BLOCK.sub(lambda match: f"{match[1]}{made(match)}{match[3]}", page)
    return FIGURE.sub(lambda match: f"{match[1]}{tidy(made(match))}{match[3]}", page)


def pages() -> Iterator[Path]:
    yield from (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def quoting(results: str) -> list[str]:
    """The pages with tables or figures of a file of results."""
    names = {name for name, (file, _) in declared().items() if file == results}
    return [str(p.relative_to(ROOT)) for p in pages() if names & shown_on(p.read_text())]


def shown_on(page: str) -> set[str]:
    return {match["name"] for marker in (BLOCK, FIGURE) for match in marker.finditer(page)}


def write() -> None:
    for page in pages():
        page.write_text(with_tables(page.read_text()))
