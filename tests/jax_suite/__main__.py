"""JAX's own tests with our loops in place of lax's: which fail that pass with lax?

python tests/jax_suite TESTS [FILE ...]

TESTS is the folder `tests` of jax-ml/jax at the tag of the installed JAX. Of each file, the tests
run whose source mentions a loop. Then JAX's own modules get our loops, and all tests of the files
named in `MODULES` run, a few cases of each. They need absl-py and hypothesis.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LOOP = re.compile(r"\bscan\(|while_loop\(|fori_loop\(")

MODULES = (
    *("lax_numpy_test.py", "lax_scipy_sparse_test.py", "lax_scipy_test.py", "linalg_test.py"),
    *("lobpcg_test.py", "nn_test.py", "ode_test.py", "qdwh_test.py", "random_lax_test.py"),
    *("random_test.py", "scipy_optimize_test.py", "experimental_rnn_test.py"),
)
"""Tests of JAX's modules that have loops of their own."""

CASES = 3
"""The most cases of a test of these."""


def expected(text: str) -> dict[str, str]:
    """The reason of each test that may fail, by its whole name."""
    reasons, reason = dict[str, str](), ""
    for line in filter(None, map(str.rstrip, text.splitlines())):
        if line.startswith("#"):
            reason = line[1:].strip()
        else:
            reasons[line] = reason
    return reasons


EXPECTED = expected((HERE / "expected.txt").read_text())


def tests_of_loops(file: Path) -> list[str]:
    source = file.read_text()
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    return sorted(
        {
            function.name
            for function in functions
            if function.name.startswith("test")
            and LOOP.search(ast.get_source_segment(source, function) or "")
        }
    )


def failures(file: Path, names: list[str], loops: str) -> tuple[set[str], str]:
    """Which tests of these names fail, of all if none is named, and how many passed."""
    environment = os.environ | {
        "JAX_SUITE_LOOPS": loops,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
    }
    command = [
        *(sys.executable, "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", "-q", "-rfE"),
        *("--tb=no", "-k", " or ".join(names), file.name),
    ]
    run = subprocess.run(command, cwd=file.parent, env=environment, text=True, capture_output=True)
    if run.returncode not in (0, 1, 5):  # 5: no test was selected
        return {f"{file.name} cannot be run: {run.stdout[-300:]}{run.stderr[-300:]}"}, "0"
    passed = re.search(r"(\d+) passed", run.stdout)
    found = re.findall(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return set(found), passed[1] if passed else "0"


def compare(file: Path, names: list[str], loops: str) -> list[str]:
    """The tests that fail with our loops alone and are not expected to. Says how many there are."""
    ours, passed = failures(file, names, loops)
    again = sorted(test.rpartition("::")[2] for test in ours if "::" in test)
    theirs = failures(file, again, "lax")[0] if again else set[str]()
    found = sorted(ours - theirs - EXPECTED.keys())
    print(f"{file.name}: {passed} pass, {len(ours)} fail, {len(ours - theirs)} with ours alone")
    print(*(f"  {test}\n" for test in found), end="", sep="", flush=True)
    return found


parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("tests", type=Path)
parser.add_argument("files", nargs="*")
options = parser.parse_args()
every = sorted(path.name for path in options.tests.glob("*_test.py"))
new: list[str] = []
for name in options.files or every:
    if tests := tests_of_loops(options.tests / name):
        new += compare(options.tests / name, tests, "ours")
print("Our loops in JAX's own modules:", flush=True)
os.environ["JAX_SUITE_CASES"] = str(CASES)
for name in filter(MODULES.__contains__, options.files or every):
    new += compare(options.tests / name, [], "everywhere")
print("\n".join(new))
raise SystemExit(bool(new))
