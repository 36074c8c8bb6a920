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

FIRST, FEW, MANY = 700_000, 12, 100
CHOSEN = """
     14   21   34   61   68   95  110  122  131  154  168  180  197  208  238  243  268  276  291
    311  333  341  367  375  386  406  416  438  448  469  485  506  525  542  548  560  576  600
    623  624  652  656  686  701  717  727  741  755  774  791  810  821  839  857  870  881  906
    913  932  959  966  983  992 1008 1033 1045 1060 1087 1095 1108 1127 1138 1165 1179 1198 1211
   1224 1246 1253 1275 1285 1300 1322 1335 1358 1360 1377 1399 1415 1429 1447 1464 1474 1491 1507
   1528 1539 1565 1579 1586 1604 1622 1647 1663 1664 1686 1699 1722 1741 1752 1766 1790
"""
"""Added to the first seed: of each sixteen programs the one with most pairs of operations, loops,
settings, transformations and modes that are not in those before, for its size."""
LONG = {34, 95, 180}
"""Those of the first few that take XLA up to a minute to compile."""
FIRST_WITH_RULES, FEW_WITH_RULES, MANY_WITH_RULES = 8_030_001, 3, 12
"""Rules that are no derivatives, to third order."""
FOUND = 8_700_004, 8_720_326, 8_750_066, 9_001_019, 9_001_235
"""Errors: an axis that a rule names, a batch of Hessians of a nest with files, and reports of
batches that are transposed."""
FIRST_BY_HOST, FEW_BY_HOST, ROOM = 900_000, 2, 25
"""After so many programs a process has no room for what they compiled."""


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
        pytest.param(FIRST + n, marks=[] if i < FEW and n not in LONG else pytest.mark.slow)
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
