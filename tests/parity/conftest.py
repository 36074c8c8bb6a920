from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def compile_quickly() -> Iterator[None]:
    """Nearly all of the time goes into compiling; what the optimised code does, others test."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
