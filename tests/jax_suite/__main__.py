"""JAX's own tests with our loops in place of lax's: which fail that pass with lax?

python tests/jax_suite TESTS [FILE ...]

TESTS is the folder `tests` of jax-ml/jax at the tag of the installed JAX. Of each file, the tests
run whose source mentions a loop. They need absl-py and hypothesis.
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

EXPECTED = (HERE / "expected.txt").read_text().splitlines()
"""Names of tests that may fail, each after its reason: the test looks for an equation of lax, or
counts what lax has in a jaxpr."""


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


def failures(file: Path, names: list[str], loops: str) -> set[str]:
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
        return {f"{file.name} cannot be run: {run.stdout[-300:]}{run.stderr[-300:]}"}
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE))


def is_expected(name: str) -> bool:
    test = name.rpartition("::")[2]
    patterns = (line.partition(":")[2].strip() for line in EXPECTED if ":" in line)
    return any(test.startswith(pattern) for pattern in patterns)


parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("tests", type=Path)
parser.add_argument("files", nargs="*")
options = parser.parse_args()
every = sorted(path.name for path in options.tests.glob("*_test.py"))
new: list[str] = []
for name in options.files or every:
    tests = tests_of_loops(options.tests / name)
    if not tests:
        continue
    ours = failures(options.tests / name, tests, "ours")
    again = sorted(test.rpartition("::")[2] for test in ours if "::" in test)
    theirs = failures(options.tests / name, again, "lax") if again else set[str]()
    found = sorted(test for test in ours - theirs if not is_expected(test))
    print(f"{name}: {len(tests)} tests, {len(ours - theirs)} fail with ours alone")
    print(*(f"  {test}\n" for test in found), end="", sep="", flush=True)
    new += found
print("\n".join(new))
raise SystemExit(bool(new))
