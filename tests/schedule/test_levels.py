"""Plans on several levels: their actions, and where they are chosen."""

import re
from math import prod
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.asked import explained_scan
from support.machine import counts_of

from jax_revolve import Disk, HostMemory, Plan, plan
from jax_revolve.profiles.profile import CPU, of_platform
from jax_revolve.schedule import cost, levels
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.selection import quickest

GPU = of_platform("gpu")

shapes = st.tuples(st.lists(st.integers(2, 6), min_size=1, max_size=4), st.integers(1, 5))


@given(shapes, st.data())
def test_actions_meet_the_formulas(shape: tuple[list[int], int], data: Any) -> None:
    counts, block_size = shape
    length = data.draw(st.integers(0, prod(counts) * block_size))
    p = plan(length, levels=counts, block_size=block_size)
    assert counts_of(p) == (p.advances, 0, 0)
    assert p.static_levels or not p.length


@given(st.integers(1, 10**6), st.integers(1, 300))
def test_levels_for_slots(blocks: int, slots: int) -> None:
    for counts in levels.fewest_advances(blocks, slots):
        assert levels.checkpoints(counts) <= slots
        assert prod(counts) >= blocks
        assert plan(blocks, levels=counts).levels == counts


def test_plans_of_levels() -> None:
    """One is a checkpoint for each block. A report shows them."""
    assert plan(1000, levels=(40,), block_size=32) == plan(1000, "all", block_size=32)
    p = plan(1000, levels=[10, 10], block_size=10)
    assert (p.checkpoints, p.levels, p.evaluations) == (19, (10, 10), 2800)
    assert plan(150, levels=(10, 10), block_size=10).levels == (2, 10)
    assert "19 checkpoints on levels of 10 x 10: 2800 evaluations" in str(p)
    chosen = plan(100, levels=(5, 5), block_size=4)
    report = explained_scan(lambda u, _: (jnp.sin(u), None), jnp.ones(10), length=100, plan=chosen)
    assert report.plan == chosen
    assert re.search(r"5 x 5 +4 .*<- chosen", str(report))


# Selection


def sizes(profile: Any) -> Sizes:
    return Sizes(4000, 4000, 4000, 4000, work=1000.0, profile=profile)


@pytest.mark.parametrize("carries", [10, 15, 20, 30, 50, 100, 300])
def test_a_gpu_gets_static_plans_within_the_budget(carries: int) -> None:
    """And others no levels."""
    chosen = quickest(1000, sizes(GPU), carries * 4000)
    assert chosen.static_levels or carries == 10
    assert cost.memory(chosen, sizes(GPU)) <= carries * 4000
    for profile in (CPU, of_platform("tpu")):
        chosen = quickest(1000, sizes(profile), carries * 4000)
        assert not getattr(chosen, "levels", ())


def test_a_gpu_does_not_wait_where_that_takes_a_little_less_time() -> None:
    """Loops that wait would be predicted a third faster in as much memory."""
    heavy, memory = sizes(GPU)._replace(work=1e5), 12 * 4000
    chosen = quickest(300, heavy, memory)
    assert chosen.levels
    others = [Plan(300, s, k) for s in range(1, 12) for k in range(1, 9)]
    others = [p for p in others if cost.memory(p, heavy) <= memory and not p.static_levels]
    waiting = min(cost.time(p, heavy) for p in others)
    assert 1.2 * waiting < cost.time(chosen, heavy) < 2 * waiting


def test_the_least_memory_needs_loops_of_unknown_length() -> None:
    """The 2-D wave of the benchmarks, in 2 % of the memory of `lax.scan`: 802 kB. The carry is two
    arrays of 100 x 100, and a step leaves one. All plans with static loops take 960 kB or more,
    because with s slots, levels reverse at most 2 ** (s - 1) blocks."""
    for slots in range(3, 13):
        assert levels.fewest_advances(2 ** (slots - 1), slots)
        assert not levels.fewest_advances(2 ** (slots - 1) + 1, slots)
    wave = Sizes(80_000, 40_000, 40_000, 80_000, work=560.0, profile=GPU)
    for memory, is_static in ((960_000, True), (959_999, False), (802_000, False)):
        chosen = quickest(1000, wave, memory)
        assert bool(chosen.static_levels) == is_static
        assert cost.memory(chosen, wave) <= memory


@pytest.mark.parametrize(
    "text",
    [
        "HostMemory()",
        "HostMemory(checkpoints=3, memory='1 MB')",
        "Disk(directory='/tmp', memory=1234567, transfer=30.0)",
    ],
)
def test_a_storage_prints_as_it_was_made(text: str) -> None:
    assert repr(eval(text, {"HostMemory": HostMemory, "Disk": Disk})) == text
