"""Layers as programs: their work, and the bytes of their residuals."""

from collections.abc import Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, is_literal, variables
from jax_revolve._compat.values import bytes_of
from jax_revolve.layers.layer import Layer, TracedLayer, arrays_of
from jax_revolve.profiles.in_force import profile_in_force
from jax_revolve.schedule.chain import Layers
from jax_revolve.step.loop import pick, substitute
from jax_revolve.step.work import work_of


def trace(
    layers: Sequence[Layer], x: Any, keys: Sequence[Any], state: Any
) -> tuple[list[TracedLayer], Layers]:
    """The traced layers, their work and sizes. Equal programs are measured and compiled once."""
    known: dict[Any, tuple[TracedLayer, tuple[int, int]]] = {}
    sizes: list[tuple[int, int]] = []
    carries: list[int] = []
    traced: list[TracedLayer] = []

    def run() -> None:
        carry, before = x, "x"
        for layer, key in zip(layers, keys, strict=True):
            own = state.substate(layer.call) if layer.is_stateful else None
            try:
                one = TracedLayer.of(layer, carry, key, own)
                alike = _key_of(one.program)
                if alike not in known:
                    operands = [*one.consts, *arrays_of((layer.call, carry, key, own))]
                    known[alike] = one, _work_and_residuals(one.program, operands)
            except Exception as error:
                types = eqx.tree_pformat(carry, short_arrays=True)
                error.add_note(f"Raised by {layer.name} of a chain, called with {before}, {types}.")
                raise
            same, size = known[alike]
            traced.append(one._replace(run=same.run))
            sizes.append(size)
            carries.append(bytes_of(map(jax.typeof, arrays_of(carry))))
            carry, _ = traced[-1](layer.call, carry, key, own)
            before = f"what {layer.name} returns"

    jax.make_jaxpr(run)()
    work, residuals = zip(*sizes, strict=True)
    return traced, Layers(work, tuple(carries), residuals)


def _key_of(program: ClosedJaxpr) -> Hashable:
    key = structure(program)
    try:
        hash(key)
    except TypeError:  # of a parameter: the program is only equal to itself
        return program
    return key


def _work_and_residuals(closed: ClosedJaxpr, operands: list[Any]) -> tuple[int, int]:
    """The work of a run, and the residual bytes besides operands and results."""
    work, fun = work_of(closed, profile_in_force()), call_jaxpr(closed)
    mask = [jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact) for x in operands]
    counts: list[int] = []

    def linearized(*operands: Any) -> list[Any]:
        def run(chosen: list[Any]) -> list[Any]:
            return fun(*substitute(operands, mask, chosen))

        results, pullback = jax.vjp(run, pick(operands, mask))
        counts.append(len(results))
        return [*results, *jax.tree.leaves(pullback)]

    jaxpr = jax.make_jaxpr(linearized)(*operands).jaxpr
    residuals = dict.fromkeys(variables(jaxpr.outvars[counts[0] :]))
    there = {*jaxpr.invars, *jaxpr.constvars, *variables(jaxpr.outvars[: counts[0]])}
    return max(round(work), 1), bytes_of(v.aval for v in residuals if v not in there)


def structure(jaxpr: Any) -> Hashable:
    """Equal for jaxprs that are the same program, as long as both exist."""
    numbers: dict[Any, int] = {}

    def of_atoms(atoms: Sequence[Any]) -> Hashable:
        return tuple(
            (
                of(np.asarray(a.val)) if is_literal(a) else numbers.setdefault(a, len(numbers)),
                a.aval,
            )
            for a in atoms
        )

    def of(value: Any) -> Hashable:
        if hasattr(value, "eqns"):
            return structure(value)
        if isinstance(value, tuple):
            return type(value), *map(of, value)
        if isinstance(value, float | complex | np.generic | np.ndarray):  # 0.0 == -0.0
            return (
                type(value),
                np.shape(value),
                np.asarray(value).dtype,
                np.asarray(value).tobytes(),
            )
        return type(value), value  # 1 == True

    def params_of(eqn: Any) -> Hashable:
        return of(tuple(sorted(eqn.params.items())))

    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return (
        of_atoms([*inner.constvars, *inner.invars]),
        tuple(map(id, getattr(jaxpr, "consts", ()))),
        *(
            (e.primitive, of_atoms(e.invars), params_of(e), e.ctx, of_atoms(e.outvars))
            for e in inner.eqns
        ),
        of_atoms(inner.outvars),
    )
