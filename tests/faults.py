"""Puts faults back into the package, one at a time, and tells which quick test catches each.

`python tests/faults.py` tries all of them in copies of the package, `--only WORD` those whose names
contain it, and `--everything` runs all quick tests for each instead of the files named here. It
fails if no test catches a fault, and if the text that a fault replaces is not in the package once:
then the mechanism has changed, and so must the fault.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 600


class Fault(NamedTuple):
    """A `text` of the package is replaced. `tests` are arguments for pytest."""

    name: str
    text: str
    replacement: str
    tests: str


PARITY = "parity/test_parity.py -k "
FAULTS = [
    # The schedule
    Fault(
        "the split of Revolve is one step early",
        "return min(max(steps - offset, shortest), longest)",
        "return min(max(steps - offset - 1, shortest), longest)",
        "test_schedule.py",
    ),
    Fault(
        "the formula of the advances is off by one binomial",
        "return r * length - beta(checkpoints + 1, r - 1)",
        "return r * length - beta(checkpoints + 1, r - 2)",
        "test_schedule.py",
    ),
    Fault(
        "the schedule leaves one slot free",
        "position = current + split(target + 1 - current, checkpoints + 1 - len(stack))",
        "position = current + split(target + 1 - current, max(checkpoints - len(stack), 1))",
        "test_schedule.py",
    ),
    Fault(
        "the end of the loop is not a step of the schedule",
        "return length + 1 if block_size == 1 and length else -(-length // block_size)",
        "return -(-length // block_size)",
        "test_schedule.py",
    ),
    Fault(
        "the online schedule lets gaps grow too long",
        "after[j - 1] - positions[j - 1] <= limit[j - 1]",
        "after[j - 1] - positions[j - 1] <= 2 * limit[j - 1]",
        "test_online.py",
    ),
    Fault(
        "the online schedule stores too rarely",
        "return min(newest + 2 * q, *(p for p in landmarks(q, checkpoints) if p > newest))",
        "return min(newest + 3 * q, *(p for p in landmarks(q, checkpoints) if p > newest))",
        "test_online.py",
    ),
    Fault(
        "two levels: one advance too many is counted",
        "return r * self.blocks - saved",
        "return r * self.blocks - saved + 1",
        "test_two_level.py",
    ),
    Fault(
        "the default bound repeats steps twice, not three times",
        "MOST_REPETITIONS_TO_A_BOUND = 3",
        "MOST_REPETITIONS_TO_A_BOUND = 2",
        "test_while_loop.py -k cube_root",
    ),
    Fault(
        "loops longer than 32 bits can count",
        "if length > LONGEST:",
        "if length > LONGEST + 1:",
        "test_planning.py",
    ),
    # The engines
    Fault(
        "the split on the device is one step late",
        "np.stack([shortest + offset, longest - shortest], axis=1)",
        "np.stack([shortest + offset + 1, longest - shortest], axis=1)",
        "test_counts.py",
    ),
    Fault(
        "the reverse sweep restarts from the checkpoint below",
        "newest = self._at(state.slot(at[TOP]), state)",
        "newest = self._at(state.slot(at[TOP]) - 1, state)",
        PARITY + "tree-grad-plain",
    ),
    Fault(
        "carries are stored in the slot below",
        "return write(slots, carry, jnp.maximum(slot - 1, 0))",
        "return write(slots, carry, jnp.maximum(slot - 2, 0))",
        PARITY + "tree-grad-plain",
    ),
    Fault(
        "a checkpoint is stored where none is read",
        "lambda stored: stored[0][TARGET] < stored[0][BLOCK],",
        "lambda stored: stored[0][TARGET] <= stored[0][BLOCK],",
        "test_counts.py",
    ),
    Fault(
        "a loop in reverse reads its xs forwards",
        "return self.steps - 1 - step if self.reverse else step",
        "return step",
        PARITY + "tree-grad-plain",
    ),
    Fault(
        "a weight gets the cotangent of the first step alone",
        "consts=add(gradient.consts, of_step.consts),",
        "consts=of_step.consts,",
        PARITY + "recurrent-grad-plain",
    ),
    Fault(
        "the cotangents of xs are forgotten",
        "xs=write(gradient.xs, of_step.xs, at),",
        "xs=gradient.xs,",
        PARITY + "recurrent-grad-plain",
    ),
    Fault(
        "the batch of a product is forgotten where it is added up over a block",
        "batch = tuple(tuple(axis + 1 for axis in axes) for axes in (batch_a, batch_b))",
        "batch = ((), ())",
        "test_blocks.py -k per_example",
    ),
    Fault(
        "the minimum cut counts equal edges twice",
        "unlimited = list(dict.fromkeys(unlimited))",
        "unlimited = list(unlimited) * 2",
        "test_cut.py -k minimum",
    ),
    # The step
    Fault(
        "a checkpoint lacks what is needed a step later",
        "if (grown := _either(needed, carry)) == needed:",
        "if (grown := _either(needed, carry)) is not needed:",
        "test_while_loop.py -k delay_line",
    ),
    Fault(
        "a carry that depends on a weight after a step has no derivative",
        "        if grown == carry:\n",
        "        if grown != []:\n",
        "test_equinox.py -k closed_over",
    ),
    Fault(
        "an example that is done from the start gets numbers of another that is",
        "donor = jnp.argmax(going)",
        "donor = jnp.argmin(going)",
        "test_while_loop.py -k done",
    ),
    Fault(
        "an example that is done goes on",
        "return select(carry, new), ys",
        "return new, ys",
        "test_while_loop.py -k steps_of_each",
    ),
    Fault(
        "an example that is done writes",
        "return [write_unless(is_done, eqn, operands)]",
        "return [write_unless(is_done & False, eqn, operands)]",
        "test_while_loop.py -k write_nothing",
    ),
    # Bytes
    Fault(
        "a plan counts one checkpoint too few",
        "checkpoints = self.checkpoints_on_device * state_bytes",
        "checkpoints = (self.checkpoints_on_device - 1) * state_bytes",
        "test_planning.py -k plan_in_blocks",
    ),
    Fault(
        "bytes are counted as if numbers had four",
        "return sum(prod(shape_on_a_device(aval)) * aval.dtype.itemsize for aval in avals)",
        "return sum(prod(shape_on_a_device(aval)) * 4 for aval in avals)",
        "test_checkpoint_loops.py -k what_is_known",
    ),
    Fault(
        "the residuals that a step computes again are not counted",
        "return in_block + sizes.again + piece(plan.block_size) * sizes.factors",
        "return in_block + sizes.again",
        "test_explain.py -k products",
    ),
    # Storage
    Fault(
        "a damaged checkpoint is used",
        "if len(header) < _HEADER.size or _HEADER.unpack(header) != expected:",
        "if len(header) < _HEADER.size:",
        "test_storage.py -k damaged",
    ),
    Fault(
        "files stay when they were read for the last time",
        "    if is_last:\n        path.unlink(missing_ok=True)",
        "    if is_last and False:\n        path.unlink(missing_ok=True)",
        "test_storage.py -k 'files_are_written'",
    ),
    Fault(
        "a carry of the storage is dropped when it is first read",
        "np.column_stack([moves, positions[stores], is_last.astype(np.int32)])",
        "np.column_stack([moves, positions[stores], np.ones_like(stores)])",
        "test_storage.py -k 'written_and_read'",
    ),
    Fault(
        "only the newest state of a run is kept",
        "self._kept = [*self._kept, (number, files)][-KEPT:]",
        "self._kept = [*self._kept, (number, files)][-1:]",
        "test_host_scan_resume.py -k damaged_file",
    ),
    # What is caught
    Fault(
        "measuring goes on after any error of the device",
        'if "RESOURCE_EXHAUSTED" not in str(error):',
        "if not str(error):",
        "test_explain_measured.py -k no_plan_runs",
    ),
    Fault(
        "leaves that are no arrays may change",
        "    try:\n        return bool(old == new)\n",
        "    try:\n        return True\n",
        "test_equinox.py -k change",
    ),
]


def try_fault(fault: Fault, *, everything: bool) -> str | None:
    """The test that fails first, or `None`."""
    found = [p for p in (ROOT / "jax_revolve").rglob("*.py") if fault.text in p.read_text()]
    if len(found) != 1 or found[0].read_text().count(fault.text) != 1:
        where = ", ".join(str(path.relative_to(ROOT)) for path in found) or "no file"
        sys.exit(f"{fault.name}: the text must be in the package once, but is in {where}.")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("jax_revolve", "tests", "docs"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", copy)
        changed = copy / found[0].relative_to(ROOT)
        changed.write_text(changed.read_text().replace(fault.text, fault.replacement))
        tests = [] if everything else _arguments(fault.tests)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider"]
        ran = subprocess.run(
            [*command, *tests], cwd=copy, capture_output=True, text=True, timeout=SECONDS
        )
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+::\S+)", ran.stdout, re.MULTILINE)
    if failed is None and ran.returncode != 0:
        sys.exit(f"{fault.name}: pytest ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return failed and failed[1]


def _arguments(tests: str) -> list[str]:
    files, _, words = tests.partition(" -k ")
    chosen = ["-k", words.strip("' ")] if words else []
    return [*(f"tests/{name}" for name in files.split()), *chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description="Put faults back into the package, one at a time.")
    parser.add_argument("--only", default="", help="faults whose names contain this")
    parser.add_argument("--everything", action="store_true", help="run all quick tests for each")
    given = parser.parse_args()
    missed = 0
    for fault in FAULTS:
        if given.only in fault.name:
            caught = try_fault(fault, everything=given.everything)
            missed += caught is None
            print(f"{fault.name}: {caught or 'NOT CAUGHT'}", flush=True)
    sys.exit(f"{missed} faults were not caught." if missed else 0)


if __name__ == "__main__":
    main()
