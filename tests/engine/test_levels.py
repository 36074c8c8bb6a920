"""Gradients on several levels: they run the plan, and their loops all have a static length."""

import os
import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from parity.transformations import ALL
from support.evaluations import steps_executed, steps_of
from support.oracles import assert_same
from support.sharded_programs import arrays, program

from jax_revolve import HostMemory, checkpointed_scan, explain, plan
from jax_revolve.profiles import in_force

quickly = pytest.mark.usefixtures("compile_quickly", "default_precision")

CASES = [(24, (2, 3), 4), (23, (2, 3), 4), (11, (3, 4), 1), (41, (2, 3, 4), 2), (9, (2, 3), 4)]
"""Lengths, levels and block sizes: lengths that divide, and others."""


@pytest.mark.unchecked
@quickly
@pytest.mark.parametrize(("length", "counts", "block_size"), CASES)
def test_executed_order_is_the_schedule(length: int, counts: Any, block_size: int) -> None:
    chosen = plan(length, levels=counts, block_size=block_size)
    order = steps_executed(length, None, jax.value_and_grad, plan=chosen)
    assert order == steps_of(chosen)
    assert len(order) == chosen.evaluations


@quickly
@pytest.mark.parametrize(
    ("case", "reverse", "name"),
    [
        *((CASES[1], True, name) for name in ("grad", "grad_of_vmap", "forward_over_reverse")),
        *((CASES[1], True, "shard_map"), (CASES[2], False, "grad"), (CASES[3], False, "grad")),
    ],
)
def test_derivatives(case: Any, reverse: bool, name: str) -> None:
    length, counts, block_size = case
    ours = partial(checkpointed_scan, plan=plan(length, levels=counts, block_size=block_size))
    found, expected = (
        ALL[name](program(partial(scan, reverse=reverse)), arrays(length))
        for scan in (ours, lax.scan)
    )
    assert_same(found, expected, 2e-4)


# Programs

WHILE = re.compile(r"stablehlo\.while.*?cond \{(.*?)\} do", re.DOTALL)


def lowered(function: Callable[..., Any], platform: str, *args: Any) -> str:
    """The program as it is traced where the platform is the default, and lowered for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_force, "default_device", lambda: SimpleNamespace(platform=platform))
        return jax.jit(function).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def has_branch(text: str) -> bool:
    """Whether a predicate is computed. The number of the platform is a constant, and the branch on
    it is resolved when the program is compiled."""
    indices = re.findall(r'"?stablehlo\.case"?\((%\w+)\)', text)
    known = r"(stablehlo\.constant|\"stablehlo\.case)"
    return "stablehlo.if" in text or not all(re.search(rf"{i} = {known}", text) for i in indices)


STATIC: list[dict[str, Any]] = [
    {"plan": plan(100, levels=(4, 3), block_size=9)},
    {"plan": plan(100, levels=(5, 5, 4))},
    {"checkpoints": 9, "block_size": 10},
    {"checkpoints": "all"},
    {"checkpoints": 0, "storage": HostMemory(checkpoints=9), "block_size": 10},
]


def check_static(function: Callable[..., Any], platform: str, *args: Any) -> None:
    text = lowered(function, platform, *(args or arrays(100)))
    conditions = WHILE.findall(text)
    assert conditions
    assert all("stablehlo.constant" in condition for condition in conditions)
    assert not has_branch(text)


@pytest.mark.unchecked
@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("options", STATIC, ids=str)
def test_a_static_plan_has_no_loop_of_unknown_length_and_no_branch(
    options: dict[str, Any], platform: str
) -> None:
    check_static(jax.grad(program(partial(checkpointed_scan, **options)), (0, 1, 2)), platform)


@pytest.mark.unchecked
@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize("options", STATIC, ids=str)
def test_undoing_histories_is_static(options: dict[str, Any]) -> None:
    def loss(x: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            u, past = carry
            return (jnp.sin(u + past[i]), past.at[i + 5].set(u)), None

        start = x, jnp.zeros((105, *x.shape))
        return jnp.sum(checkpointed_scan(step, start, jnp.arange(100), **options)[0][1])

    if options.get("checkpoints") != 0:
        assert explain(loss)(jnp.ones(3)).loops[0].sizes.journal
    check_static(jax.grad(loss), "cuda", jnp.ones(3))


@pytest.mark.parametrize("options", [{"checkpoints": 6}, {"checkpoints": 5, "block_size": 3}])
def test_every_forward_sweep_is_static(options: dict[str, Any]) -> None:
    """The reverse sweep of these plans looks up how far to advance."""
    loss = program(partial(checkpointed_scan, **options))
    check_static(lambda *args: jax.tree.leaves(jax.vjp(loss, *args)[1]), "cuda")


@pytest.mark.unchecked
def test_a_buffer_in_the_hosts_memory_is_not_computed_there() -> None:
    """XLA would warn of compute on the host. Slots are broadcast from what was not moved there."""
    of_host = jax.grad(program(partial(checkpointed_scan, **STATIC[-1])))
    text = lowered(of_host, "cuda", *arrays(100))
    moved = set(re.findall(r"(%\w+) = stablehlo.custom_call @annotate_device_placement", text))
    made = re.findall(r"broadcast_in_dim (%\w+),.*-> tensor<8x8x4x", text)
    assert moved
    assert made
    assert not moved.intersection(made)


# With the compiler for GPUs

IS_INSTALLED = find_spec("jax_cuda12_plugin") is not None


needs_plugin = pytest.mark.skipif(
    not IS_INSTALLED or os.environ.get("JAX_PLATFORMS") != "cpu",
    reason="needs jax-cuda12-plugin, which looks for a GPU unless JAX_PLATFORMS=cpu",
)


def for_an_h100(monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    """What is recorded of the gradient of a stencil, whose scan has these options."""
    monkeypatch.setattr(in_force, "default_device", in_force.default_device)  # to be put back
    from benchmarks.contenders.scans import JAX_REVOLVE
    from benchmarks.gpu_programs import H100, CompilerFor
    from benchmarks.runner.programs import Contender
    from benchmarks.workloads.recurrences import scanned, stencil

    compiler = CompilerFor(scanned(stencil(1000, 20_000)), H100)
    ours = Contender(JAX_REVOLVE, partial(checkpointed_scan, **options))
    return compiler.record(ours, None)


@pytest.mark.slow
@needs_plugin
@pytest.mark.usefixtures("default_precision")
def test_no_waits_in_a_program_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = plan(1000, levels=(10, 10), block_size=10)
    record = for_an_h100(monkeypatch, plan=chosen)
    assert (record["waits"], record["dynamic_loops"], record["copies_of_buffers"]) == (0, 0, 0)
    assert record["kernels"] < 14_000
    assert record["temp_bytes"] <= chosen.memory(80_000, 80_000) + 16_000


@pytest.mark.slow
@needs_plugin
@pytest.mark.usefixtures("default_precision")
def test_transfers_to_and_from_the_host_overlap_with_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All have a block of kernels to end in, except perhaps the last write, which the first read
    follows."""
    options = {"checkpoints": 0, "storage": HostMemory(checkpoints=50), "block_size": 20}
    record = for_an_h100(monkeypatch, **options)
    assert (record["waits"], record["dynamic_loops"]) == (0, 0)
    beside = sorted(record["beside_transfers"])
    assert len(beside) in (3, 4)
    assert beside[-3] >= 20 * 3
