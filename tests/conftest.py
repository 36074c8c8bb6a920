"""Flags of the compiler, precision, and what is collected, for all tests."""

import gc
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_parallel_codegen_split_count=1",  # small programs compile quicker in one piece
        # In two thirds of the time. Since 0.11, JAX has no other emitters than those users have.
        "--xla_cpu_use_fusion_emitters=false"
        if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
        else "",
        os.environ.get("XLA_FLAGS", ""),
    ]
)

import jax
import pytest
from hypothesis import settings

from jax_revolve.profiles.in_force import VARIABLE
from jax_revolve.profiles.profile import FOLDER

os.environ[VARIABLE] = str(FOLDER / "cpu.json")  # not one that was measured on this machine

jax.config.update("jax_enable_x64", True)

pytest.register_assert_rewrite("support", "parity")  # failures show values there, too

# The same examples in every run, however busy the machine is.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """To import what only the slow tests need takes seconds."""
    is_slow = collection_path.name == "slow" and collection_path.is_dir()
    return True if is_slow and "not slow" in str(config.getoption("markexpr")) else None


SLOW_TESTS = frozenset(Path(__file__).with_name("slow_tests.txt").read_text().splitlines())
"""Those that take a core more than 2.5 s, where a quicker one shows the same more coarsely. Names,
because often only some cases of a test are among them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = {item: item.nodeid.removeprefix("tests/") for item in items}
    for item, name in names.items():
        if item.path.parent.name == "slow" or name in SLOW_TESTS:
            item.add_marker("slow")
    # Of files that are collected: others need packages, and cases may depend on the version of JAX.
    functions = {name.partition("[")[0] for name in names.values()}
    files = {name.partition("::")[0] for name in functions}
    listed = {name.partition("[")[0] for name in SLOW_TESTS}
    unknown = {name for name in listed - functions if name.partition("::")[0] in files}
    if config.args == config.getini("testpaths") and unknown:
        raise pytest.UsageError(f"tests/slow_tests.txt names what is no test: {sorted(unknown)}")


def pytest_collection_finish() -> None:
    """A traced program is many small objects, and what is imported stays."""
    gc.set_threshold(50000, 20, 100)
    gc.collect()
    gc.freeze()


@pytest.fixture
def default_precision() -> Iterator[None]:
    """What users have: JAX's default. Tests whose tolerance needs it are in double precision."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.fixture
def compile_quickly() -> Iterator[None]:
    """Nearly all of the time goes into compiling; what the optimized code does, others test."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
