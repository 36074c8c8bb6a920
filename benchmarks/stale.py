"""Which results were measured with another `jax_revolve` than the one that is checked out.

    python -m benchmarks stale

prints a line for each file of results, and fails if one is of other sources. A change of comments
counts, too: what it cannot have changed need not be measured again.
"""

import json
import sys

from benchmarks.report.results import FOLDER
from benchmarks.runner.timing import sources


def main(arguments: list[str]) -> None:
    if arguments:
        sys.exit("usage: python -m benchmarks stale")
    now, stale = sources()["tree"], 0
    for path in sorted(FOLDER.glob("*.json")):
        machine = json.loads(path.read_text())["machine"]
        tree, commit = machine.get("tree"), str(machine.get("commit", "unknown"))[:12]
        state = "current" if tree == now and tree is not None else "stale"
        stale += state == "stale"
        print(f"{state:<8} {path.stem:<20} {machine.get('date', '')}  commit {commit}")
    sys.exit(stale > 0)
