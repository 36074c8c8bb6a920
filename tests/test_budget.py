"""The promise of `memory=`, over twelve kinds of loops and five budgets each."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from asked import explained_scan
from jax import lax
from test_memory import compiled
from workloads import WORKLOADS, Workload

from jax_revolve import checkpointed_scan

pytestmark = pytest.mark.usefixtures("default_precision")

LENGTH = 300
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5)
"""Of what `lax.scan` takes, which stores everything."""


def temporaries(workload: Workload, scan: Any, length: int) -> int:
    """Of the compiled gradient with respect to all that has one."""
    arguments = workload.of_length(length)
    given = tuple(i for i, argument in enumerate(arguments) if argument is not None)
    gradient = jax.grad(partial(workload.loss, scan, length), given, allow_int=True)
    return compiled(gradient, *arguments).memory_analysis().temp_size_in_bytes


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    ("workload", "shares"),
    [
        pytest.param(workload, shares, id=f"{workload.name}-{shares}", marks=marks)
        for i, workload in enumerate(WORKLOADS)
        for shares, marks in (
            (SHARES[1:2], [] if i % 3 == 0 else [pytest.mark.slow]),
            (SHARES[::3], [pytest.mark.slow]),
            (SHARES[2::2], [pytest.mark.exhaustive]),
        )
    ],
)
def test_gradient_keeps_to_its_budget(workload: Workload, shares: tuple[float, ...]) -> None:
    """The budget covers the checkpoints, the tape and a carry. The allowance is what no plan can
    change: what the gradient of a single step takes for itself, the cotangents of closed-over
    values, two carries, and 16 kB for the schedule."""
    parameters, init, xs = workload.of_length(LENGTH)
    step = lambda carry, x: (workload.step(parameters, carry, x), None)  # noqa: E731
    report = explained_scan(step, init, xs, LENGTH)
    least = report.memory(report.choices[0])
    closed_over = report.always["cotangents of closed-over values"]
    allowance = temporaries(workload, lax.scan, 1) + closed_over + 2 * report.sizes.carry + 16384
    everything = temporaries(workload, lax.scan, LENGTH)
    for share in shares:
        budget = max(int(share * everything), least)
        held = temporaries(workload, partial(checkpointed_scan, memory=budget), LENGTH)
        assert held <= budget + allowance, share


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    def loss(u: Any, memory: int) -> Any:
        step = lambda u, _: (jnp.sin(u), None)  # noqa: E731
        return jnp.sum(checkpointed_scan(step, u, None, 100, memory=memory)[0])

    u = jnp.ones(1000)
    least = 3 * u.nbytes
    with pytest.raises(ValueError, match=f"memory must be at least {least} bytes here, but"):
        jax.grad(loss)(u, least - 1)
    assert jax.grad(loss)(u, least).shape == u.shape


def test_the_budget_is_that_of_the_batch_that_is_differentiated() -> None:
    """Inside of `vmap` a loop knows one example. A batched loop knows them all."""

    def chosen(batch: int) -> Any:
        state = jax.ShapeDtypeStruct((batch, 100), jnp.float32)
        return explained_scan(lambda u, _: (jnp.sin(u), None), state, length=100, memory=40000).plan

    assert chosen(1).block_size > chosen(10).block_size
