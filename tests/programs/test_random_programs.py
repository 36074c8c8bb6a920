"""Random programs: some in every run, many more in the slow one, always the same ones.

`cd tests && python -m programs --first SEED --count 1 --minimize` makes one that fails smaller.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import pytest

from jax_revolve import host_scan
from programs import running
from programs.program import Program
from programs.running import Refused, check

pytestmark = pytest.mark.usefixtures("compile_quickly")

FIRST, FEW, MANY = 700_000, 12, 26
CHOSEN = """
     14   21   34   61   68   95  110  122  131  154  168  180  197  238  268  291  333  367  386
    416  448  485  525  548  576  623  652  686  717  741  774  810  839  870  906  932  966  992
   1033 1060 1095 1127 1165 1198 1224 1253 1285 1322 1358 1377 1415 1447 1474 1507 1539 1579 1604
   1647 1664 1699 1741 1766
"""
"""Added to the first seed: of each sixteen programs, later of each 32, one with many pairs of
operations, loops, settings, transformations and modes that are not in those before, for its
size."""
LONG = {34, 95, 180}
"""Those of the first few that take XLA up to a minute to compile."""
FIRST_WITH_RULES, FEW_WITH_RULES, MANY_WITH_RULES = 8_030_001, 3, 12
"""Rules that are no derivatives, to third order."""
FOUND = 8_700_004, 8_720_326, 8_750_066, 9_001_019, 9_001_235
"""Errors: an axis that a rule names, a batch of Hessians of a nest with files, and reports of
batches that are transposed."""
FIRST_BY_HOST, FEW_BY_HOST, ROOM = 900_000, 2, 25
"""After so many programs a process has no room for what they compiled."""


def marks_of(index: int) -> Any:
    """The first few are quick, and of the others every second one is slow."""
    return [] if index < FEW else pytest.mark.slow if index % 2 else pytest.mark.exhaustive


@contextmanager
def skipped_if_refused(program: Program) -> Iterator[None]:
    print(program)
    try:
        yield
    except Refused as error:
        pytest.skip(f"jax.lax refuses it: {str(error).splitlines()[0][:80]}")


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(FIRST + n, marks=marks_of(i) if n not in LONG else pytest.mark.slow)
        for i, n in enumerate(map(int, CHOSEN.split()))
    ],
)
def test_a_random_program(seed: int) -> None:
    program = Program.random(seed)
    with skipped_if_refused(program):
        check(program)


@pytest.mark.parametrize(
    "seed",
    [
        *(
            pytest.param(FIRST_WITH_RULES + i, marks=[] if i < FEW_WITH_RULES else pytest.mark.slow)
            for i in range(MANY_WITH_RULES)
        ),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in FOUND),
    ],
)
def test_a_random_program_with_rules(seed: int) -> None:
    program = Program.random(seed)
    with skipped_if_refused(program):
        check(program)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(FIRST_BY_HOST + i, marks=[] if i < FEW_BY_HOST else pytest.mark.slow)
        for i in range(MANY)
    ],
)
def test_a_random_program_by_host_scan(seed: int) -> None:
    """As far as `host_scan` can run it: not in another loop, where values are not known."""
    program = Program.random(seed)
    small = program.setting in ("least memory", "some memory")
    program = replace(
        program,
        body="the loop",
        loop="nest" if seed % 4 == 0 else "scan",
        transformation="value" if seed % 5 == 0 else "grad",
        mode="double",
        by_host=True,
        under_jit=False,
        setting="much memory" if small else program.setting,
    )
    if seed % ROOM == 0:
        jax.clear_caches()
    with tempfile.TemporaryDirectory() as directory, running.paths(program):
        options = running.options_of(program, directory)
        options.pop("block_size", None)

        def run(*arguments: Any, unroll: Any, **more: Any) -> Any:
            del unroll
            return host_scan(*arguments, **more, **options)

        with skipped_if_refused(program):
            expected = running.run_theirs(replace(program, under_jit=True), {})
        ours = running.theirs()._replace(scan=run)
        running.compare(program, running.run(program, ours, {}), expected)
