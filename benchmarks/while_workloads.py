"""The while loops that are timed: those of `workloads`, stopped by a condition."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from workloads import LoopFunction, Workload, lstm, rnn, stencil, sum_of_squares

SECOND_ORDER, BOUNDS, VMAP = "second-order", "bounds", "vmap"
"""Families that are measured in a way of their own; all others are named by their step."""


@dataclass(frozen=True)
class WhileWorkload(Workload):
    """A workload that counts its steps up to the input "limit", an argument of the program: the
    compiler does not know `length`, how many that is. The step's x is looked up by the count.

    `bounds` are the `max_steps` to be passed; all families but one have a single one.
    """

    bounds: tuple[int, ...]

    @property
    def name(self) -> str:
        bounds = " or ".join(map(str, self.bounds))
        return f"{self.family}, {self.length} steps of {bounds}, {self.size}"

    @property
    def max_steps(self) -> int:
        return self.bounds[0]

    def loss(
        self, loop: LoopFunction, active: dict[str, Any], passive: dict[str, Any]
    ) -> jax.Array:
        """The sum of the squares of the final carry, by a loop called as `lax.while_loop`."""
        inputs = active | passive

        def unfinished(state: tuple[jax.Array, Any]) -> jax.Array:
            return state[0] < inputs["limit"]

        def body(state: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            i, carry = state
            x = jax.tree.map(partial(lax.dynamic_index_in_dim, index=i, keepdims=False), xs)
            return i + 1, self.step(inputs["parameters"], carry, x)

        xs = inputs["xs"]
        _, final = loop(unfinished, body, (jnp.int32(0), inputs["init"]))
        return sum_of_squares(final)


@dataclass(frozen=True)
class ManyExamples(WhileWorkload):
    """Loops of 1, 2, ..., `length` steps under `jax.vmap`; every input has an axis of examples."""

    @property
    def name(self) -> str:
        return f"{self.family}, 1 to {self.length} steps of {self.max_steps}, {self.size}"

    def loss(
        self, loop: LoopFunction, active: dict[str, Any], passive: dict[str, Any]
    ) -> jax.Array:
        return jnp.sum(jax.vmap(partial(super().loss, loop))(active, passive))


def until_limit(
    workload: Workload, bounds: tuple[int, ...], family: str | None = None
) -> WhileWorkload:
    """The workload with a limit. Its gradient is no longer with respect to the table of xs."""
    active = {name: value for name, value in workload.active.items() if name != "xs"}
    inputs = workload.active | workload.passive | {"limit": jnp.int32(workload.length)}
    return WhileWorkload(
        family=family or workload.family,
        size=f"{workload.family} of {workload.size}" if family else workload.size,
        length=workload.length,
        step=workload.step,
        active=active,
        passive={name: value for name, value in inputs.items() if name not in active},
        checkpoints=workload.checkpoints,
        bounds=bounds,
    )


def stencils_under_vmap(examples: int, width: int, bound: int, checkpoints: int) -> ManyExamples:
    """As many stencils of different heights, the last of which takes as many steps."""
    one = stencil(examples, width, (checkpoints,))
    heights = jnp.linspace(0.5, 1, examples)[:, None]
    return ManyExamples(
        family=VMAP,
        size=f"stencil of {one.size}",
        length=examples,
        step=one.step,
        active={"init": heights * one.init},
        passive=one.passive | {"limit": jnp.arange(1, examples + 1)},
        checkpoints=one.checkpoints,
        bounds=(bound,),
    )


def all_workloads() -> list[WhileWorkload]:
    # `None` is the library's default number of checkpoints.
    return [
        until_limit(stencil(1000, 20_000, (63, 30, 10)), (4096,)),
        until_limit(stencil(10_000, 1000, (63, 30, 10)), (16_384,)),
        until_limit(rnn(1000, 16, 128, (63, 30, 10)), (4096,)),
        until_limit(lstm(1000, 16, 128, (63, 30, None, 10)), (4096,)),
        until_limit(stencil(200, 2000, ()), (256,), SECOND_ORDER),
        until_limit(stencil(8, 20_000, (8,)), (16, 1024, 2**20), BOUNDS),
        stencils_under_vmap(64, 2000, 4096, checkpoints=10),
    ]


def smoke_workloads() -> list[WhileWorkload]:
    """Tiny ones, to see that everything runs; their times mean nothing."""
    return [
        until_limit(stencil(12, 16, (3,)), (32,)),
        until_limit(rnn(12, 2, 4, (None,)), (32,)),
        until_limit(stencil(12, 16, ()), (32,), SECOND_ORDER),
        until_limit(stencil(4, 16, (4,)), (8, 2**20), BOUNDS),
        stencils_under_vmap(5, 16, 32, checkpoints=3),
    ]
