"""Puts faults back into the package, one at a time, and tells which quick test catches each.

`python tests/faults.py` tries all of them in copies of the package, `--only WORD` those whose names
contain it, `--share 2/7` the second of seven shares, and `--everything` runs all quick tests for
each instead of the files named here. `.ci/run` tries one share on each day of the week. It fails if
no test catches a fault, and if the text that a fault replaces is not in the package once: then the
mechanism has changed, and so must the fault.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 600


FAULTS = """\
# The schedule

the split of Revolve is one step early: schedule/test_actions.py
- return min(max(steps - offset, beta(s, r - 2), 1), beta(s, r - 1))
+ return min(max(steps - offset - 1, beta(s, r - 2), 1), beta(s, r - 1))

the formula of the advances is off by one binomial: schedule/test_actions.py
- return r * length - beta(checkpoints + 1, r - 1)
+ return r * length - beta(checkpoints + 1, r - 2)

the schedule leaves one slot free: schedule/test_actions.py
- position = current + split(target + 1 - current, checkpoints + 1 - len(stack))
+ position = current + split(target + 1 - current, max(checkpoints - len(stack), 1))

the end of the loop is not a step of the schedule: schedule/test_actions.py
- return length + 1 if block_size == 1 and length else -(-length // block_size)
+ return -(-length // block_size)

the online schedule lets gaps grow too long: schedule/test_online.py
- after[j - 1] - positions[j - 1] <= limit[j - 1]
+ after[j - 1] - positions[j - 1] <= 2 * limit[j - 1]

the online schedule stores too rarely: schedule/test_online.py
- return min(newest + 2 * q, *(p for p in landmarks(q, checkpoints) if p > newest))
+ return min(newest + 3 * q, *(p for p in landmarks(q, checkpoints) if p > newest))

one advance too many is counted for each segment: schedule/test_actions.py
- of_segment = self.segment * (self.parts + 1) // 2
+ of_segment = self.segment * (self.parts + 1) // 2 + 1

the default bound repeats steps twice, not three times: loops/test_while_loop.py -k cube_root
- MOST_REPETITIONS_TO_A_BOUND = 3
+ MOST_REPETITIONS_TO_A_BOUND = 2

loops longer than 32 bits can count: schedule/test_planning.py
- if not is_while and length > LONGEST:
+ if not is_while and length > LONGEST + 1:

# The engines

the split on the device is one step late: engine/test_evaluations.py
- np.stack([shortest + offset, longest - shortest], axis=1)
+ np.stack([shortest + offset + 1, longest - shortest], axis=1)

the reverse sweep restarts from the checkpoint below: parity/test_parity.py -k tree-grad-plain
- newest = sweep.restart(sweep.at(state.slot(top), state), position, state)
+ newest = sweep.restart(sweep.at(state.slot(top) - 1, state), position, state)

carries are stored in the slot below: parity/test_parity.py -k tree-grad-plain
- return write(slots, carry, _row(slot))
+ return write(slots, carry, _row(slot - 1))

a checkpoint is stored where none is read: engine/test_evaluations.py
- lambda stored: lax.lt(element(stored[0], TARGET), element(stored[0], BLOCK)),
+ lambda stored: lax.le(element(stored[0], TARGET), element(stored[0], BLOCK)),

a loop in reverse reads its xs forwards: parity/test_parity.py -k tree-grad-plain
- return self.steps - 1 - step if self.reverse else step
+ return step

a weight gets the cotangent of the first step alone: parity/test_parity.py -k recurrent-grad-plain
- consts=substitute(gradient.consts, now, consts),
+ consts=substitute(gradient.consts, now, flat[:first]),

the cotangents of xs are forgotten: parity/test_parity.py -k recurrent-grad-plain
- xs=write(gradient.xs, list(map(added, sums, flat[first_x:])), at),
+ xs=gradient.xs,

the batch of a product is forgotten where it is added up over a block: engine/test_blocks.py -k per_example
- batch = tuple(tuple(axis + 1 for axis in axes) for axes in (batch_a, batch_b))
+ batch = ((), ())

the minimum cut counts equal edges twice: engine/test_cut.py -k minimum
- unlimited = list(dict.fromkeys(unlimited))
+ unlimited = list(unlimited) * 2

# The step

a checkpoint lacks what is needed a step later: loops/test_while_loop.py -k delay_line
- while (grown := union(needed, reads(needed))) != needed:
+ while (grown := union(needed, reads(needed))) is needed:

an initial carry that steps read is replaced by zeros: parity/test_parity.py -k tree-grad-plain
- carry = [self.is_any_needed or stored for stored in self.restart]
+ carry = [self.is_any_needed for _ in self.restart]

xs that steps read are replaced by zeros: parity/test_parity.py -k tree-grad-plain
- read = aux.linearized_step(aux.loop, inputs).read
+ read = [False] * len(inputs.xs)

barriers of windows change what is computed: step/test_windows.py
- equations += [eqn.replace(outvars=[alone]), apart]
+ equations += [eqn.replace(outvars=[alone]), apart.replace(invars=eqn.invars[:1])]

a product goes although others use it: step/test_transposes.py
- if name_of(eqn) != "transpose" or uses[eqn.invars[0]] > 1:
+ if name_of(eqn) != "transpose":

an inner sweep drops a carry that its checkpoints hold: step/test_linearized.py -k without_the_buffer
- carry = list(map(max, used[: function.loop.num_carry], function.restart))
+ carry = list(used[: function.loop.num_carry])

a carry that depends on a weight after a step has no derivative: autodiff/test_any_order.py -k do_not_depend_on_the_example
-             if grown == carry or all(map(max, results, is_integer)):
+             if grown != []:

an example that never ran gets numbers of another that never ran: step/test_examples.py -k never_ran
- is_donor = numbers == jnp.argmax(~never.flags)
+ is_donor = numbers == jnp.argmax(never.flags)

an example that is done adds to what all share: loops/test_while_loop.py -k examples_that_are_done
- dots = [dot if is_zero(dot) else select(is_done, jnp.zeros_like(dot), dot, axes)]
+ dots = [dot]

an example that is done goes on: loops/test_while_loop.py -k steps_of_each
- return [*substitute(new, selected, [lax.select(is_done, *pair) for pair in pairs]), *entries]
+ return [*new, *entries]

an example that is done writes: loops/test_while_loop.py -k write_nothing
- return [write_unless(is_done, eqn, operands)]
+ return [write_unless(is_done & False, eqn, operands)]

# Histories

the first of two writes is undone first: step/test_journal.py -k each_write
- for eqn, were in reversed([(eqn, next(old)) for eqn in equations]):
+ for eqn, were in [(eqn, next(old)) for eqn in equations]:

a block tells the wrong place of the histories: step/test_journal.py -k each_plan
- reached = end, start + count
+ reached = end, start + count - 1

# Reversible steps

what was walked back is not compared with the checkpoint: engine/test_reversible.py -k wrong_inverse
- return x * jnp.where(largest <= 1, 1, jnp.nan).astype(x.dtype)
+ return jnp.where(largest <= 1, x, x)

the walk goes on from the carry that it has come to: engine/test_reversible.py -k drifts_no_further
- Walk(exact, scales, jnp.maximum
+ Walk(found, scales, jnp.maximum

a gradient that is used beside its derivative is left out: autodiff/test_any_order.py -k some_values
- values = tuple(used[: len(function.output_types)])
+ values = (False,) * len(function.output_types)

the tangents of an inverse's consts are left out: engine/test_reversible.py -k every_order
- carry, carry_dot = derivative(loop.inverse, *parts)
+ carry, carry_dot = derivative(loop.inverse, parts[0], [0 * x for x in parts[1]], *parts[2:])

examples that were done are walked back: engine/test_reversible.py -k while_loops
- is_over = None if own is None else done(step < own)
+ is_over = None if own is None else done(step < own) & False

# Derivative rules, and examples

what a rule computes is the function: step/test_linearized.py -k values_and
- if not any(active) or not calls_rules(jaxpr):
+ if not any(active) or jaxpr:

a gradient forgets that it is differentiated: step/test_linearized.py -k another_direction
- is_changed = function.has_rule and any(mask)
+ is_changed = False

a sweep serves the derivative of another loop: step/test_linearized.py -k values_and
-     return None if needs_more or found != sweep.activity else served
+     return sweep

an inner loop stores checkpoints where an outer one advances: step/test_linearized.py -k store_nothing
- as_loop = not (function.vmaps or function.later or function.is_read_once)
+ as_loop = False

examples at one point share values that tell them apart: step/test_linearized.py -k axis_alone
- rule = partial(batch, axis, run, dims)
+ count = len(function.output_types)
+         def rule(*flat):
+             results, found = batch(axis, run, dims, *flat)
+             values = [x if d is None else x[0] for x, d in zip(results[:count], found)]
+             return [*values, *results[count:]], [*[None] * count, *found[count:]]

a sweep is traced where its axes are not bound: step/test_linearized.py -k axis_alone
- activity = within(sweep.vmaps, lambda: find_activity(sweep.loop, differentiated))
+ activity = find_activity(sweep.loop, differentiated)

others see made-up values of examples that are done: step/test_linearized.py -k examples_that_are_done
- is_seen = id(eqn) in seen
+ is_seen = False

examples that see each other are taken to be independent: programs/test_checkpoint_loops.py -k see_each_other
- is_independent = _rows(params["body_jaxpr"], start.ndim, has_rows) is not None
+ is_independent = True

loops are folded while a function is traced: step/test_linearized.py -k while_a_function_is_traced
- with eager_constant_folding(False):  # `jax.ensure_compile_time_eval` would run the loop
+ with eager_constant_folding(eager_constant_folding.value):

functions with rules are discharged like others: parity/test_references.py -k rules
- return eqn.replace(primitive=_hidden_p, params={"hidden": eqn})
+ return eqn

# Progress

recomputed steps report again: progress/test_meters.py -k one_bar
- known[silenced] = _silent(function)
+ known[silenced] = function

a bar counts the steps of the shortest example: progress/test_meters.py -k longest
- jnp.max(x, axis=d) for x, d in zip(flat[:2], dims, strict=False)
+ jnp.min(x, axis=d) for x, d in zip(flat[:2], dims, strict=False)

the last block is the shortest: schedule/test_planning.py -k in_blocks
- return -(-(length - block_size) // others) if others > 0 else block_size
+ return block_size

a longer last block leaves room: schedule/test_planning.py -k all_of_the_memory
- longest = min(plan.block_size + left // max(sizes.residuals, 1), most)
+ longest = min(plan.block_size + left // max(2 * sizes.residuals, 1), most)

a GPU waits to save a little: schedule/test_levels.py -k does_not_wait
- MOST_FOR_NO_WAITS = 2
+ MOST_FOR_NO_WAITS = 1

# Bytes

products of weight gradients are not counted: schedule/test_planning.py -k products_of_weights
- carry = sizes.carry + sizes.journal + sizes.weights
+ carry = sizes.carry + sizes.journal

a plan counts one checkpoint too few: schedule/test_planning.py -k plan_in_blocks
- checkpoints = self.checkpoints_on_device * state_bytes
+ checkpoints = (self.checkpoints_on_device - 1) * state_bytes

bytes are counted as if numbers had four: programs/test_checkpoint_loops.py -k what_is_known
- return sum(prod(shape_on_a_device(aval)) * aval.dtype.itemsize for aval in avals)
+ return sum(prod(shape_on_a_device(aval)) * 4 for aval in avals)

the residuals that a step computes again are not counted: programs/test_explain.py -k products
- return in_block + sizes.again + piece(plan.block_size) * sizes.factors
+ return in_block + sizes.again

# Storage

a damaged checkpoint is used: storage/test_places.py -k damaged
- if zlib.crc32(content) != ticket[-1]:
+ if not ticket[-1]:

files stay when they were read for the last time: storage/test_places.py -k files_are_written
- if is_last:
-         folder.remove([name])
+ if is_last and False:
+         folder.remove([name])

the first segment of a while loop is left out: storage/test_places.py -k stop_anywhere
- number = jnp.minimum(-(-blocks // size), all_parts + 1)
+ number = jnp.minimum(-(-blocks // size), all_parts + 1) - 1

only the newest state of a run is kept: host/test_resume.py -k damaged
- self._kept = [*self._kept, (number, _files(state))][-KEPT:]
+ self._kept = [*self._kept, (number, _files(state))][-1:]

# What is caught

leaves that are no arrays may change: integrations/test_equinox.py -k change
-     try:
-         return bool(old == new)
+     try:
+         return True
"""  # noqa: E501
"""Each with the arguments of pytest that find it, lines of the package, and what replaces them."""


class Fault(NamedTuple):
    name: str
    tests: str
    text: str
    replacement: str


def faults() -> Iterator[Fault]:
    for paragraph in FAULTS.split("\n\n"):
        title, *lines = paragraph.splitlines()
        if not title.startswith("#"):
            name, _, tests = title.rpartition(": ")
            yield Fault(
                name, tests, *("\n".join(x[2:] for x in lines if x[0] == sign) for sign in "-+")
            )


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
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider"]
        if not everything:
            file, _, words = fault.tests.partition(" -k ")
            command += ["-m", "not exhaustive", f"tests/{file}", *(["-k", words] if words else [])]
        ran = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=SECONDS)
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+::\S+)", ran.stdout, re.MULTILINE)
    if failed is None and ran.returncode != 0:
        sys.exit(f"{fault.name}: pytest ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return failed and failed[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Put faults back into the package, one at a time.")
    parser.add_argument("--only", default="", help="faults whose names contain this")
    parser.add_argument("--everything", action="store_true", help="run all quick tests for each")
    parser.add_argument("--share", default="0/1", help="which of how many shares")
    given = parser.parse_args()
    missed, (first, step) = 0, map(int, given.share.split("/"))
    for fault in list(faults())[first % step :: step]:
        if given.only in fault.name:
            caught = try_fault(fault, everything=given.everything)
            missed += caught is None
            print(f"{fault.name}: {caught or 'NOT CAUGHT'}", flush=True)
    sys.exit(f"{missed} faults were not caught." if missed else 0)


if __name__ == "__main__":
    main()
