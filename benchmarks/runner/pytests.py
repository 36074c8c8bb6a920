"""Runs tests, and tells which failed, also when there was not enough time for all of them."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LONGEST_ERROR = 300
MOST_WORKERS = 8

OUTCOME = re.compile(
    r"^(?:\[gw\d+\] .*?(?P<before>PASSED|FAILED|ERROR|SKIPPED) )?"
    r"(?P<test>tests/\S+?::.+?)(?: (?P<after>PASSED|FAILED|ERROR|SKIPPED).*)? *$",
    re.MULTILINE,
)
SUMMARY = re.compile(r"^=+ (.* in .*) =+$", re.MULTILINE)


def run_tests(arguments: list[str], folder: Path, seconds: float) -> dict[str, Any]:
    """The summary of pytest, if it came to its end, and the names of what failed."""
    with TemporaryDirectory() as temporary:
        output = Path(temporary) / "output"
        command = [sys.executable, "-m", "pytest", "-v", "--tb=line", *_workers(), *arguments]
        with output.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Several processes share the device.
                env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
        found = outcomes(output.read_text())
        if not found["passed"] and not found["failed"]:
            raise RuntimeError(f"No test ran: {output.read_text()[-LONGEST_ERROR:]}")
        return {"arguments": " ".join(arguments), **found}


def outcomes(output: str) -> dict[str, Any]:
    found = {m["test"]: m["before"] or m["after"] for m in OUTCOME.finditer(output)}
    by_outcome = {kind: [t for t, o in found.items() if o == kind] for kind in ("FAILED", "ERROR")}
    summaries = SUMMARY.findall(output)
    return {
        "summary": summaries[-1] if summaries else None,
        "passed": sum(outcome == "PASSED" for outcome in found.values()),
        "failed": [test for tests in by_outcome.values() for test in tests],
    }


def _workers() -> list[str]:
    """Of `pytest-xdist`, if it is installed."""
    return ["-n", "auto", "--maxprocesses", str(MOST_WORKERS)] if find_spec("xdist") else []
