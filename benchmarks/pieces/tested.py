"""Tests on the device."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.runner.comparison import Record
from benchmarks.runner.pieces import Setting
from benchmarks.runner.pytests import run_tests

TESTING = 0.93
"""The share of the seconds of a piece that its tests may take: what failed by then is told."""

_MEMORY, _PARITY = "tests/test_memory.py", "tests/parity"
TESTS: dict[str, tuple[list[str], ...]] = {
    "memory": (
        [_MEMORY],
        [_MEMORY],
        [f"{_MEMORY}::test_a_store_of_the_online_schedule_is_small"],
    ),
    "parity": (
        [_PARITY],
        [_PARITY, "-k", "grad"],
        [f"{_PARITY}/test_parity.py::test_same_as_lax[recurrent-grad-plain]"],
    ),
}


def measure_tests(name: str, setting: Setting) -> Iterator[Record]:
    """This process does not touch the device, which the tests use."""
    folder = Path(__file__).parents[2]
    yield run_tests(setting.of(TESTS[name]), folder, TESTING * setting.seconds)
