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
from programs.program import Program, chosen
from programs.running import Refused, check

pytestmark = pytest.mark.usefixtures("compile_quickly")

FIRST, FEW, MANY = 700_000, 12, 100
LONG = {700034, 700095, 700180}
"""Programs of the first few that take XLA up to a minute to compile."""
FIRST_BY_HOST, FEW_BY_HOST, ROOM = 900_000, 2, 25
"""After so many programs a process has no room for what they compiled."""


def marks(number: int, program: Program) -> list[pytest.MarkDecorator]:
    return [] if number < FEW and program.seed not in LONG else [pytest.mark.slow]


@contextmanager
def skipped_if_refused(program: Program) -> Iterator[None]:
    print(program)
    try:
        yield
    except Refused as error:
        pytest.skip(f"jax.lax refuses it: {str(error).splitlines()[0][:80]}")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=str(program.seed), marks=marks(i, program))
        for i, program in enumerate(chosen(FIRST, FEW + MANY))
    ],
)
def test_a_random_program(program: Program) -> None:
    with skipped_if_refused(program):
        check(program)


def as_host_scan_can(seed: int) -> Program:
    """The random program with this seed, as far as `host_scan` can run it: not in another loop,
    where values are not known."""
    program = Program.random(seed)
    small = program.setting in ("least memory", "some memory")
    return replace(
        program,
        body="the loop",
        loop="nest" if seed % 4 == 0 else "scan",
        transformation="value" if seed % 5 == 0 else "grad",
        mode="double",
        under_jit=False,
        setting="much memory" if small else program.setting,
    )


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(FIRST_BY_HOST + i, marks=[] if i < FEW_BY_HOST else pytest.mark.slow)
        for i in range(MANY)
    ],
)
def test_a_random_program_by_host_scan(seed: int) -> None:
    program = as_host_scan_can(seed)
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
