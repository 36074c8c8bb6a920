"""Workarounds for how XLA compiles for CPUs.

Each piece has a name. The environment variable `JAX_REVOLVE_WITHOUT` turns off the pieces that it
lists, separated by commas, and `benchmarks/cpu_pieces.py` measures whether a new XLA still needs
them. They prevent:

- `reads`: copies of an array whose entries a step reads. Pays on a trajectory that a step writes.
- `carry`: a copy of the carry in each step of a forward sweep. Pays on a wave and on a trajectory.
- `products`: copies of the factors of weight gradients. Pays on an LSTM in blocks.

Three more have no switch, because the code would be the same without them. Scalars that belong
together are one array (`steps.advance`, `engine.reverse`, `engine.online`), because each scalar
would be a kernel that takes as long as a light step. Placement is one small loop, which XLA
compiles to one kernel (`engine.placement`). And largest entries are found among integers.
"""

import os
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import ClosedJaxpr
from jax_revolve.jaxprs.evaluate import run_each, run_equation, run_in_place
from jax_revolve.jaxprs.walk import with_equations
from jax_revolve.profiles.in_force import profile_of_platform
from jax_revolve.profiles.profile import CPU
from jax_revolve.step.examples import any_example
from jax_revolve.step.updates import Uses, updated, with_slices

VARIABLE = "JAX_REVOLVE_WITHOUT"
PIECES = ("reads", "carry", "products")


def is_on(piece: str) -> bool:
    off = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if unknown := [name for name in off if name not in PIECES]:
        raise ValueError(
            f"{VARIABLE} must list some of {', '.join(PIECES)}, separated by commas, but it lists "
            f"{unknown[0]!r}. Unset it to use all of them."
        )
    return piece not in off


def is_for_cpu(piece: str) -> bool:
    """Whether a piece is on, in a program traced for a CPU."""
    return is_on(piece) and profile_of_platform() == CPU


def sum_of_products(eqn: Any, a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of an equation, also contracted over a new leading axis of both operands.

    To contract over several axes, XLA for CPU copies the operands, so we merge these axes first,
    unless arrays may be sharded: merging would gather the operands of all steps on every device.
    """
    (axes_a, axes_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    contracted = tuple((0, *(axis + 1 for axis in axes)) for axes in (axes_a, axes_b))
    batch = tuple(tuple(axis + 1 for axis in axes) for axes in (batch_a, batch_b))
    several = tuple(range(len(contracted[0])))
    do_lead = contracted == (several, several) and not batch_a
    is_sharded = jax.device_count() > 1 or any(any(jax.typeof(x).sharding.spec) for x in (a, b))
    if do_lead and not is_sharded and is_for_cpu("products"):
        count = len(several)
        a, b = (x.reshape(prod(x.shape[:count]), *x.shape[count:]) for x in (a, b))
        contracted = ((0,), (0,))
    return run_equation(eqn, [a, b], dimension_numbers=(contracted, batch))


def largest_entry(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """The largest absolute value, 0 of none; NaN if there is one.

    XLA for CPU compares integers many at a time, but floats one by one. Absolute values have the
    order of their bits, with NaN above infinity.
    """
    sizes = jnp.abs(x)
    if (bits := jnp.finfo(sizes.dtype).bits) not in (32, 64):
        return jnp.max(sizes, axes, initial=0)
    integers = lax.bitcast_convert_type(sizes, jnp.dtype(f"int{bits}"))
    return lax.bitcast_convert_type(jnp.max(integers, axes, initial=0), sizes.dtype)


def with_reads_first(pullback: ClosedJaxpr) -> ClosedJaxpr:
    """The pullback, changed so that XLA writes in place into arrays whose entries it also reads.

    If a step writes entries of an array, the pullback reads these entries of its cotangent and then
    sets them to zero. XLA for CPU inserts copies before it orders operations, and would fuse the
    read into each kernel that needs it. So the read is a branch of its own, and the write depends
    on it.
    """
    closed = with_slices(pullback)
    pairs = Uses(closed).writes_with_reads() if is_on("reads") else []
    if not pairs:
        return pullback
    before = {id(writer): readers for writer, readers in pairs}
    readers = {id(reader) for readers in before.values() for reader in readers}
    equations: dict[int, Any] = {}
    for eqn in closed.eqns:
        for each in (*before.get(id(eqn), ()), eqn):
            equations.setdefault(id(each), each)

    def run_all(*inputs: Any) -> list[Any]:
        entries: dict[Any, jax.Array] = {}

        def run(eqn: Any, operands: list[Any]) -> list[Any]:
            if id(eqn) in readers:
                entries[eqn.outvars[0]] = value = _read_alone(eqn, operands)
                return [value]
            if id(eqn) in before:
                read = [entries[reader.outvars[0]] for reader in before[id(eqn)]]
                operands[updated(eqn)] = _after(read, operands[updated(eqn)])
                return [run_equation(eqn, operands)]
            return run_in_place(eqn, operands)

        return run_each(with_equations(closed, list(equations.values())), inputs, run)

    return jax.make_jaxpr(run_all)(*closed.in_avals)


def _read_alone(eqn: Any, operands: list[Any]) -> jax.Array:
    """The entries that an equation reads, on CPU in a branch. Both branches are equal."""

    def read() -> jax.Array:
        return run_in_place(eqn, operands)[0]

    def branch() -> jax.Array:
        return lax.cond(any_example(jnp.any(operands[1] >= 0)), read, read)

    return lax.platform_dependent(cpu=branch, default=read)


def _after(entries: list[jax.Array], update: jax.Array) -> jax.Array:
    """The update, made to depend on these entries: XLA does not know that no number is less than
    itself."""
    for entry in map(jnp.real, entries):
        update = lax.select(entry < entry, lax.full_like(update, 1), update)
    return update
