"""The loop as a function that JAX differentiates, and what it refuses."""

from typing import Any

import jax
import numpy as np

from jax_revolve._compat.values import as_array, is_traced
from jax_revolve.host.arrays import on_same_devices
from jax_revolve.host.problem import Problem
from jax_revolve.host.run import Results, run_forward
from jax_revolve.step.loop import Operands, is_inexact


def run(call: Problem) -> Results:
    """The final carry and the ys, with a rule for reverse mode."""
    # JAX would convert NumPy arrays, which may be files that are larger than the memory.
    operands, in_memory = call.operands, [isinstance(x, np.ndarray) for x in call.operands.xs]

    def whole(values: Operands, xs: list[Any]) -> Operands:
        pairs = zip(values.xs, xs, in_memory, strict=True)
        return values._replace(xs=[x if m else value for value, x, m in pairs])

    @jax.custom_vjp
    def run(given: Operands) -> Results:
        _check_known(given)
        return run_forward(call.value(_arrays(whole(given, operands.xs))))[0]

    def forward(given: Any) -> tuple[Results, Any]:
        values = jax.tree.map(lambda x: x.value, given)
        _check_known(values)
        differentiated = jax.tree.map(
            lambda x: x.perturbed and is_inexact(jax.typeof(x.value)), given
        )
        differentiated = whole(differentiated, [False] * len(in_memory))
        problem = call.gradient(_arrays(whole(values, operands.xs)), differentiated)
        results, run = run_forward(problem)
        return results, jax.tree_util.Partial(run.pull_back)  # without leaves

    def backward(pull_back: Any, cotangents: Any) -> tuple[Operands]:
        _check_known(cotangents)
        return (pull_back(*cotangents),)

    run.defvjp(forward, backward, symbolic_zeros=True)
    return run(jax.tree.map(_reverse_only, whole(operands, [None] * len(in_memory))))


def _arrays(operands: Operands) -> Operands:
    """Consts and carry as arrays, on all devices of a loop that is on several. The xs may be
    NumPy's, and then stay in the host's memory."""
    consts, carry, xs = operands
    values = on_same_devices([*map(as_array, consts), *map(as_array, carry), *xs])
    first_x = len(consts) + len(carry)
    return Operands(values[: len(consts)], values[len(consts) : first_x], values[first_x:])


def _check_known(values: Any) -> None:
    if any(map(is_traced, jax.tree.leaves(values))):
        raise NotImplementedError(
            "host_scan is a loop in Python, and cannot run inside jax.jit, jax.vmap, jax.lax "
            "loops or derivatives of its gradient, where values are not known: use "
            "jax_revolve.checkpointed_scan there, or put the transformation inside f."
        )


def _reverse_only(x: Any) -> Any:
    return _without_forward_mode(x) if is_inexact(jax.typeof(x)) else x


@jax.custom_jvp
def _without_forward_mode(x: Any) -> Any:
    return x


@_without_forward_mode.defjvp
def _(primals: Any, tangents: Any) -> Any:
    # Reverse mode traces tangents, forward mode knows them.
    if not is_traced(tangents[0]):
        raise NotImplementedError(
            "host_scan has no forward mode (jax.jvp, jax.jacfwd): use "
            "jax_revolve.checkpointed_scan."
        )
    return primals[0], tangents[0]
