"""Workloads and contenders, and the programs that are compiled of them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, isnan
from time import perf_counter
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from benchmarks.runner.timing import seconds

Loop: TypeAlias = Any
"""What a workload is run with: called as `lax.scan` or `lax.while_loop` is, or an adjoint."""

Inputs: TypeAlias = dict[str, Any]
Loss: TypeAlias = Callable[[Inputs, Inputs], jax.Array]

Record: TypeAlias = dict[str, Any]
"""What was measured of one program, as it is written to the file of results."""


@dataclass(frozen=True)
class Workload:
    """`loss(loop, active, passive)` of a loop of `length` steps; derivatives are with respect to
    the inputs in `active`. `steps` and `size` say how many and how large they are."""

    family: str
    steps: str
    size: str
    length: int
    loss: Callable[[Loop, Inputs, Inputs], jax.Array]
    active: Inputs
    passive: Inputs

    @property
    def name(self) -> str:
        return f"{self.family}, {self.steps}, {self.size}"


@dataclass(frozen=True, eq=False)
class Contender:
    """A loop by name; the other fields are recorded.

    `block` is the number of steps that are taped together, `budget` the bytes to keep to.
    """

    name: str
    loop: Loop
    checkpoints: int | None = None
    max_steps: int | None = None
    block: int | None = None
    budget: int | None = None
    detail: str = ""


INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = ", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A compiled function with its arguments; `temp_bytes` is the memory that it takes beside its
    arguments and results, and `phases` says how long each phase of compiling it took."""

    contender: Contender
    compiled: Any
    arguments: tuple[Any, ...]
    temp_bytes: int
    phases: dict[str, float]

    @cached_property
    def once(self) -> float:
        """The seconds of one run, for a search among many."""
        return seconds(self.run)

    @property
    def instructions(self) -> int:
        return len(INSTRUCTION.findall(self.compiled.as_text()))

    def run(self) -> Any:
        result = jax.block_until_ready(self.compiled(*self.arguments))
        jax.effects_barrier()  # what reports progress may end later than the result
        return result


def _value(loss: Loss, active: Inputs, passive: Inputs, _: Inputs) -> Any:
    return loss(active, passive)


def _jvp(loss: Loss, active: Inputs, passive: Inputs, tangents: Inputs) -> Any:
    return jax.jvp(lambda active: loss(active, passive), (active,), (tangents,))


def _gradient(loss: Loss, active: Inputs, passive: Inputs, _: Inputs) -> Any:
    return jax.grad(loss)(active, passive)


def _gradients(loss: Loss, active: Inputs, passive: Inputs, _: Inputs) -> Any:
    """Of each example."""
    return jax.vmap(jax.grad(loss))(active, passive)


def _hvp(loss: Loss, active: Inputs, passive: Inputs, tangents: Inputs) -> Any:
    """Forward over reverse."""
    return jax.jvp(lambda active: jax.grad(loss)(active, passive), (active,), (tangents,))[1]


def _grad_of_grad(loss: Loss, active: Inputs, passive: Inputs, tangents: Inputs) -> Any:
    """Reverse over reverse."""
    first = jax.grad(loss)
    return jax.grad(lambda active: _along(first(active, passive), tangents))(active)


def _along(gradient: Inputs, tangents: Inputs) -> jax.Array:
    return sum(map(jnp.vdot, *map(jax.tree.leaves, (gradient, tangents))), jnp.zeros(()))


QUANTITIES = {
    "value": _value,
    "jvp": _jvp,
    "gradient": _gradient,
    "gradients of examples": _gradients,
    "hvp": _hvp,
    "grad of grad": _grad_of_grad,
}
"""What is computed of a loss. Tangents of all ones are an argument: the compiler would make use of
constants."""


PHASES: tuple[str, ...] = ("trace_seconds", "lower_seconds", "compile_seconds")


class Compiler:
    """Compiles a quantity of a workload by one contender or another, by each of them once.

    What follows a comma in the quantity is for the reader.
    """

    def __init__(self, workload: Workload, quantity: str) -> None:
        self.workload = workload
        self.quantity = quantity.partition(",")[0]
        self._programs: dict[Contender, Program] = {}

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        active = self.workload.active
        return active, self.workload.passive, jax.tree.map(jnp.ones_like, active)

    def __call__(self, contender: Contender) -> Program:
        if contender not in self._programs:
            loss = partial(self.workload.loss, contender.loop)
            stage: Any = jax.jit(partial(QUANTITIES[self.quantity], loss))
            phases: dict[str, float] = {}
            for phase, arguments in {"trace": self.arguments, "lower": (), "compile": ()}.items():
                start = perf_counter()
                stage = getattr(stage, phase)(*arguments)
                phases[f"{phase}_seconds"] = perf_counter() - start
            size = int(stage.memory_analysis().temp_size_in_bytes)
            self._programs[contender] = Program(contender, stage, self.arguments, size, phases)
        return self._programs[contender]


def difference(result: Any, reference: Any) -> float:
    """The relative distance between two results, all their arrays taken together; inf for nan."""

    apart = jnp.sqrt(sum_of_squares(jax.tree.map(jnp.subtract, result, reference)))
    size = jnp.maximum(jnp.sqrt(sum_of_squares(reference)), jnp.finfo(jnp.float32).tiny)
    return inf if isnan(relative := float(apart / size)) else relative


def sum_of_squares(tree: Any) -> jax.Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


def bytes_of(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
