"""`host_scan` in random programs: those of `tests/programs`, with one scan that Python drives."""

import tempfile
from dataclasses import replace
from typing import Any

import jax
import pytest
from programs import running
from programs.program import Program
from programs.running import Refused

from jax_revolve import host_scan

FIRST, FEW, MANY, ROOM = 900_000, 2, 100, 25
"""The first of the programs, how many there are, and after how many a process has no room for what
they compiled."""


def program_of(seed: int) -> Program:
    """The random program with this seed, as far as `host_scan` can run it."""
    program = Program.random(seed)
    small = program.setting in ("least memory", "some memory")
    return replace(
        program,
        body="the loop",  # in another loop, values are not known
        loop="nest" if seed % 4 == 0 else "scan",
        transformation="value" if seed % 5 == 0 else "grad",
        mode="double",
        under_jit=False,
        setting="much memory" if small else program.setting,
    )


def loops(scan: Any, **options: Any) -> running.Loops:
    def run(*arguments: Any, unroll: Any, **more: Any) -> Any:
        del unroll
        return scan(*arguments, **more, **options)

    return running.theirs()._replace(scan=run)


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    "seed",
    [pytest.param(FIRST + i, marks=[] if i < FEW else pytest.mark.slow) for i in range(MANY)],
)
def test_a_random_program(seed: int) -> None:
    program = program_of(seed)
    print(program)
    if seed % ROOM == 0:
        jax.clear_caches()
    with tempfile.TemporaryDirectory() as directory, running.paths(program):
        options = running.options_of(program, directory)
        options.pop("block_size", None)
        try:
            expected = running.run_theirs(replace(program, under_jit=True), {})
        except Refused as error:
            pytest.skip(f"jax.lax refuses it: {str(error).splitlines()[0][:80]}")
        running.compare(program, running.run(program, loops(host_scan, **options), {}), expected)
