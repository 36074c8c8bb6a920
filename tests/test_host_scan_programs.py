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

FIRST, FEW, MANY = 900_000, 3, 60


def program_of(seed: int) -> Program:
    """The random program with this seed, as far as `host_scan` can run it."""
    program = Program.random(seed)
    small = program.setting in ("least memory", "some memory")
    return replace(
        program,
        loop="nest" if seed % 4 == 0 else "scan",
        transformation="value" if seed % 5 == 0 else "grad",
        mode="double",
        under_jit=False,
        setting="much memory" if small else program.setting,
    )


def loops(options: dict[str, Any]) -> running.Loops:
    def scan(*arguments: Any, unroll: Any, **more: Any) -> Any:
        del unroll
        return host_scan(*arguments, **more, **options)

    return running.theirs()._replace(scan=scan)


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    "seed",
    [pytest.param(FIRST + i, marks=[] if i < FEW else pytest.mark.slow) for i in range(MANY)],
)
def test_a_random_program(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(seed)
    print(program)
    with tempfile.TemporaryDirectory() as directory:
        options = running.options_of(program, directory)
        monkeypatch.setattr(running, "ours", lambda _: loops(options))
        try:
            running.check(program)
        except Refused as error:
            pytest.skip(f"jax.lax refuses it: {str(error).splitlines()[0][:80]}")
        finally:
            jax.clear_caches()  # a process has room for so many small programs only
