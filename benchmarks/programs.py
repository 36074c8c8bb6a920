"""Compiled programs: the value, derivative or gradient of a workload's loss by one contender."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, isnan
from typing import Any

import jax
import jax.numpy as jnp
from contenders import Contender
from workloads import LoopFunction, Workload


@dataclass(frozen=True)
class Program:
    """A compiled function with its arguments. `temp_bytes` is the memory it takes for itself, its
    arguments and results not counted; `None` where the device's compiler does not say."""

    contender: Contender
    compiled: Callable[..., Any]
    arguments: tuple[Any, ...]
    temp_bytes: int | None

    def run(self) -> Any:
        return jax.block_until_ready(self.compiled(*self.arguments))


def value(workload: Workload, contender: Contender) -> Program:
    return _compile(workload, contender, workload.loss)


def gradient(workload: Workload, contender: Contender) -> Program:
    return _compile(workload, contender, partial(_gradient, workload.loss))


def jvp(workload: Workload, contender: Contender) -> Program:
    """The derivative in the direction of all ones."""
    return _compile(workload, contender, partial(_jvp, workload.loss), _ones(workload))


def hvp(workload: Workload, contender: Contender) -> Program:
    """The Hessian times the direction of all ones, forward over reverse."""
    return _compile(workload, contender, partial(_hvp, workload.loss), _ones(workload))


def _ones(workload: Workload) -> Any:
    return jax.tree.map(jnp.ones_like, workload.active)


def _gradient(loss: Callable[..., Any], loop: LoopFunction, active: Any, passive: Any) -> Any:
    return jax.grad(partial(loss, loop))(active, passive)


def _jvp(
    loss: Callable[..., Any], loop: LoopFunction, active: Any, passive: Any, tangents: Any
) -> Any:
    return jax.jvp(lambda active: loss(loop, active, passive), (active,), (tangents,))


def _hvp(
    loss: Callable[..., Any], loop: LoopFunction, active: Any, passive: Any, tangents: Any
) -> Any:
    def gradient(active: Any) -> Any:
        return jax.grad(partial(loss, loop))(active, passive)

    return jax.jvp(gradient, (active,), (tangents,))[1]


def _compile(
    workload: Workload, contender: Contender, function: Callable[..., Any], *more: Any
) -> Program:
    arguments = (workload.active, workload.passive, *more)
    compiled = jax.jit(partial(function, contender.loop)).lower(*arguments).compile()
    analysis = compiled.memory_analysis()
    temp_bytes = None if analysis is None else int(analysis.temp_size_in_bytes)
    return Program(contender, compiled, arguments, temp_bytes)


def difference(result: Any, reference: Any) -> float:
    """The relative distance between two results, all their arrays taken together; inf for nan."""

    def norm(tree: Any) -> jax.Array:
        squares = (jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))
        return jnp.sqrt(sum(squares, jnp.zeros(())))

    apart = jax.tree.map(jnp.subtract, result, reference)
    relative = float(norm(apart) / jnp.maximum(norm(reference), jnp.finfo(jnp.float32).tiny))
    return inf if isnan(relative) else relative
