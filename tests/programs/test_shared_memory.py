"""`checkpoint_loops(memory=...)`: one amount of memory for loops in each other."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from support.asked import explained_scan

from jax_revolve import checkpoint_loops, checkpointed_chain, explain
from jax_revolve.programs.choice import Choice
from jax_revolve.programs.explain import memory_of, reports_on
from jax_revolve.programs.find import find_loops
from jax_revolve.programs.share import MANY, Outlay, quickest, together
from jax_revolve.schedule import cost
from jax_revolve.typing import FoundLoop

quick = pytest.mark.usefixtures("compile_quickly")

X = jnp.linspace(0.1, 1.0, 50)
BOUND = 40

Fun = Callable[[Any], Any]


def step(x: Any) -> Any:
    return jnp.sin(x) * jnp.exp(-0.1 * x) + 0.1 * x


def scan(length: int, inner: Fun = step, reverse: bool = False) -> Fun:
    return lambda x: lax.scan(lambda c, _: (inner(c), None), x, length=length, reverse=reverse)[0]


def until(steps: int, inner: Fun = step) -> Fun:
    """A while loop of so many steps."""

    def run(x: Any) -> Any:
        start = (jnp.zeros((), jnp.int32), x)
        body = lambda c: (c[0] + 1, inner(c[1]))  # noqa: E731
        return lax.while_loop(lambda c: c[0] < steps, body, start)[1]

    return run


NESTS: dict[str, Fun] = {
    "two": scan(20, scan(20)),
    "three": scan(16, scan(17, scan(18))),
    "one after the other": lambda x: scan(18)(scan(30, lambda x: scan(20)(scan(17)(x)))(x)),
    "while in scan": scan(20, until(30)),
    "scan in while": until(30, scan(20)),
    "in a chain": scan(20, lambda x: checkpointed_chain([scan(20), scan(17)], x, checkpoints=1)),
    "two in one left alone": scan(10, scan(20, scan(20))),
    "while in one left alone": scan(10, until(30)),
}


class Program:
    """A nest, and what becomes of it with so much memory."""

    def __init__(self, name: str) -> None:
        self.fun = lambda x: jnp.sum(NESTS[name](x) ** 2)
        self.loops = list(find_loops(jax.make_jaxpr(self.fun)(X), (True,), {}))
        with pytest.raises(ValueError, match="memory must be at least") as info:
            self.replacements(1)
        self.least, self.kept = int(re.findall(r"\d+", str(info.value))[0]), 0
        reports = reports_on(self.loops[0].program, self.replacements(self.least))
        if not all(reports[loop] for loop in self.loops if loop.depth == 0):
            # What one that is left alone keeps besides: all but the checkpoints in it.
            self.kept = self.memory_and_time(self.least)[0] - self.least

    def replacements(self, memory: int | None) -> Any:
        replacements, budget = Choice(None, memory, 16, BOUND, None).replacements(self.loops)
        plans = budget.plans((True,)) if budget else {}
        return replacements | {key: replace(replacements[key], plan=plans[key]) for key in plans}

    def memory_and_time(self, memory: int | None) -> tuple[int, float]:
        """Of the loops that share the memory."""
        replacements = self.replacements(memory)
        reports = reports_on(self.loops[0].program, replacements)
        times = [
            self._runs(loop) * cost.time(r.plan, r.sizes, is_while=r.is_while)
            for loop, r in reports.items()
            if r is not None
        ]
        return memory_of(reports, self.loops[0].program.alone) - self.kept, sum(times)

    def _runs(self, loop: FoundLoop) -> int:
        outer = [o for o in self.loops if o is not loop and o.key == loop.key[: len(o.key)]]
        return prod(o.length or BOUND for o in outer)


QUICK = {"two", "one after the other", "while in scan", "in a chain", "two in one left alone"}
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NESTS]


@pytest.mark.parametrize("name", NAMES)
@quick
def test_budgets(name: str) -> None:
    """More memory is never slower, and the default is never quicker where it fits. The least is
    stated, and enough."""
    of = Program(name)
    default, most = of.memory_and_time(None)
    budgets = {of.least, of.least * 5 // 4, of.least * 2, default, default * 2, default * 30}
    times = []
    for budget in sorted(budgets):
        taken, time = of.memory_and_time(budget)
        assert taken <= budget  # as measured with the chosen plans
        assert budget < default or time <= most * (1 + 1e-9)
        times.append(time)
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(times))
    assert times[-1] < 0.9 * most
    with pytest.raises(ValueError, match=f"at least {of.least} bytes here, but is {of.least - 1}"):
        of.replacements(of.least - 1)
    ours = checkpoint_loops(of.fun, memory=of.least, max_steps=BOUND)
    expected = jax.jit(jax.jvp, static_argnums=0)(of.fun, (X,), (jnp.cos(X),))[1]
    np.testing.assert_allclose(jnp.vdot(jax.grad(ours)(X), jnp.cos(X)), expected, rtol=1e-10)


@quick
def test_memory_is_for_one_example() -> None:
    """Plans are chosen when loops are found: a batch, which takes more, can follow them, too."""
    of = lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum())  # noqa: E731
    fun = lambda x: jnp.sum(scan(20, lambda c: scan(20)(c) * x)(x) ** 2)  # noqa: E731
    rows = jnp.stack([X[:4]] * 50) * jnp.linspace(1, 2, 50)[:, None]
    ours = jax.jit(of(checkpoint_loops(fun, memory=2000)))(rows)
    np.testing.assert_allclose(ours, jax.jit(of(fun))(rows), rtol=1e-10)


outlays = st.builds(
    Outlay,
    held=st.integers(0, 50),
    passing=st.integers(0, 50),
    time=st.integers(1, 1000).map(float),
)


@given(st.lists(outlays, min_size=2, max_size=5), st.data())
def test_loops_after_each_other(drawn: list[Outlay], data: Any) -> None:
    """All of them hold what they hold, and one at a time what passes."""
    first = [Outlay(0, 0, 2000.0), *drawn]
    others = [Outlay(o.held * 2, o.passing + 1, o.time / 2) for o in first]
    second = [Outlay(1, 1, 3000.0), others[1], *others]
    memory = data.draw(st.integers(2, 300))
    both = together([first, second], MANY)
    fitting = [
        a.time + b.time
        for a, b in product(first, second)
        if a.held + b.held + max(a.passing, b.passing) <= memory / 1.05
    ]
    chosen = quickest(both, memory)
    assert chosen is not None
    assert chosen.memory <= memory
    assert chosen.time <= min(fitting, default=chosen.time)
    assert both[0] == Outlay(1, 1, 5000.0)


@pytest.mark.parametrize("memory", [3_000, 10_000, 50_000])
def test_a_single_loop(memory: int) -> None:
    """It is nearly as quick as it would be by itself, though fewer plans are looked at."""
    (shared,) = explain(checkpoint_loops(scan(200), memory=memory))(X).loops
    alone = explained_scan(lambda c, _: (step(c), None), X, length=200, memory=memory)
    assert shared.memory(shared.plan) <= memory
    assert cost.time(shared.plan, alone.sizes) <= 1.05 * cost.time(alone.plan, alone.sizes)
