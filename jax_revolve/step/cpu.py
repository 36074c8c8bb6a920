"""Workarounds for how XLA compiles for CPUs.

Each piece has a name, and `benchmarks/cpu_pieces.py` measures whether a new XLA still needs it.
They prevent:

- `branch`: residuals computed again in each kernel that needs them. Pays on forces between
  particles, and on waves that are walked back.
- `turns`: two tapes where a loop around blocks turns once, before jax 0.12. Pays with two blocks.
- `reads`: copies of an array whose entries a step reads. Pays on a trajectory that a step writes.
- `carry`: a copy of the carry in each step of a forward sweep. Pays on a wave and on a trajectory.
- `products`: copies of the factors of weight gradients. Pays on an LSTM in blocks.
- `windows`: arithmetic computed again in each window that reads its results, since jax 0.11. Pays
  on stencils of several stages.
- `transposes`: transposes of weight gradients, one entry at a time. Pays on Hessian-vector products
  of models.

Three more have no switch, because the code would be the same without them. Scalars that belong
together are one array (`steps.advance`, `engine.slots`, `engine.online`), because each scalar
would be a kernel that takes as long as a light step. Placement is one small loop, which XLA
compiles to one kernel (`engine.placement`). And largest entries are found among integers.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from operator import is_
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.jaxprs import (
    ClosedJaxpr,
    Var,
    call_jaxpr,
    facts_of,
    name_of,
    variables,
    with_equations,
)
from jax_revolve._compat.memories import is_host_type
from jax_revolve._compat.values import bytes_of, pick, substitute, varying_axes, zeros
from jax_revolve.jaxprs.evaluate import run_each, run_equation, run_in_place
from jax_revolve.jaxprs.inline import inlined
from jax_revolve.jaxprs.walk import has_equation, inner_programs, with_inner_programs
from jax_revolve.profiles.in_force import profile_of_platform
from jax_revolve.profiles.profile import CPU
from jax_revolve.step.examples import any_example
from jax_revolve.step.loop import Loop, for_loop
from jax_revolve.step.operations import having
from jax_revolve.step.updates import Uses, updated, with_slices

T = TypeVar("T")

PIECES = ("branch", "turns", "reads", "carry", "products", "windows", "transposes")

turned_off: set[str] = set()
"""The pieces that a benchmark does without. What is traced is not traced again for another set."""


def is_for_cpu(piece: str) -> bool:
    """Whether a piece is on, in a program traced for a CPU."""
    return piece not in turned_off and profile_of_platform() == CPU


def turns(count: Any, body: Callable[..., T], state: T) -> T:
    """`for_loop(0, count, body, state)`, a loop around blocks.

    XLA unrolls a single turn, and may then tape the next block before it has used up the last tape:
    two tapes. A barrier prevents that, but XLA for CPU removes barriers before it orders
    operations. So there we hide the number of turns, which on a GPU would cost a wait.
    """
    if isinstance(count, int) and count == 1:
        if is_for_cpu("turns"):
            count = lax.optimization_barrier(jnp.int32(1))
        else:
            state = barrier(state)
    return for_loop(0, count, body, state)


def barrier(state: T) -> T:
    """A barrier before and after these values. Values that vary over different device axes have
    separate barriers, because all results of a barrier vary over the axes of all its operands."""
    leaves, treedef = jax.tree.flatten(state)
    axes = [varying_axes(jax.typeof(leaf)) for leaf in leaves]
    for each in set(axes):
        alike = [a == each for a in axes]
        leaves = substitute(leaves, alike, lax.optimization_barrier(pick(leaves, alike)))
    return jax.tree.unflatten(treedef, leaves)


_WINDOWS = frozenset(["concatenate", "dynamic_slice", "gather", "pad", "rev", "slice"])
_ARITHMETIC = having("elementwise", "transcendental", "slow") - having("free")


def with_windows_apart(loop: Loop) -> Loop:
    """The loop with a barrier, in its step, on each value that arithmetic computes and that two or
    more windows read, such as the slices that `jnp.roll` concatenates, or those of a `jnp.pad`.

    XLA for CPU would compute the value again in each of them, one entry at a time, with a branch
    for each. A user of `jax.lax.scan` can write such barriers by hand. Before jax 0.11, XLA removes
    them too early.
    """
    if jax.__version_info__ < (0, 11) or not is_for_cpu("windows"):
        return loop
    known = facts_of(loop.jaxpr)
    if _WINDOWS not in known:
        known.setdefault(_WINDOWS, _rewritten(loop.jaxpr, _windows_apart))
    return loop._replace(jaxpr=known[_WINDOWS])


def _rewritten(closed: Any, rewrite: Callable[[Any, list[Any]], list[Any]]) -> Any:
    """The program with its equations rewritten, at any depth; the same object if none changes."""
    flat = inlined(closed, ("jit",)) if isinstance(closed, ClosedJaxpr) else closed
    inside = list[Any]()
    for eqn in flat.eqns:
        programs = [_rewritten(program, rewrite) for program in inner_programs(eqn)]
        inside.append(with_inner_programs(eqn, programs) if programs else eqn)
    equations = rewrite(getattr(flat, "jaxpr", flat), inside)
    same = len(equations) == len(flat.eqns) and all(map(is_, equations, flat.eqns))
    return closed if same else with_equations(flat, equations)


def _windows_apart(_: Any, old: list[Any]) -> list[Any]:
    windows = Counter[Any]()  # how many read a variable, also through others
    for eqn in reversed(old):
        if name_of(eqn) in _WINDOWS:
            through = max(1, windows[eqn.outvars[0]])
            arrays = (v for v in variables(eqn.invars) if v.aval.ndim)
            windows.update(dict.fromkeys(arrays, through))
    equations = list[Any]()
    for eqn in old:
        if name_of(eqn) not in _ARITHMETIC or windows[eqn.outvars[0]] < 2:
            equations.append(eqn)
            continue
        (result,) = eqn.outvars
        alone = Var(result.aval)
        apart = _barrier().replace(invars=[alone], outvars=[result], source_info=eqn.source_info)
        equations += [eqn.replace(outvars=[alone]), apart]
    return equations


@cache
def _barrier() -> Any:
    return jax.make_jaxpr(lax.optimization_barrier)(0.0).eqns[0]


def without_transposes(pullback: ClosedJaxpr) -> ClosedJaxpr:
    """The pullback, with the operands of a product exchanged instead of its result transposed.

    JAX pulls `x @ w` back to `w` by the transpose of `ct.T @ x`. XLA makes one product of that, but
    not of what forward mode makes of it: the transpose of a sum of products.
    """
    is_on = is_for_cpu("transposes")
    return _rewritten(pullback, _without_transposes) if is_on else pullback


def _without_transposes(program: Any, old: list[Any]) -> list[Any]:
    uses = Counter[Any](variables([*program.outvars, *(v for eqn in old for v in eqn.invars)]))
    made = {eqn.outvars[0]: eqn for eqn in old if _has_equal_roles(eqn)}
    gone, exchanged = set[int](), dict[int, Any]()
    for eqn in old:
        if name_of(eqn) != "transpose" or uses[eqn.invars[0]] > 1:
            continue
        product = made.get(eqn.invars[0])
        if product is not None and eqn.params["permutation"] == _exchange(product):
            gone.add(id(product))
            contracted, batch = (axes[::-1] for axes in product.params["dimension_numbers"])
            params = {**product.params, "dimension_numbers": (contracted, batch)}
            exchanged[id(eqn)] = product.replace(
                invars=product.invars[::-1], outvars=eqn.outvars, params=params
            )
    return [exchanged.get(id(eqn), eqn) for eqn in old if id(eqn) not in gone]


def _has_equal_roles(eqn: Any) -> bool:
    """Whether an equation is a product that treats both of its operands alike."""
    if name_of(eqn) != "dot_general" or eqn.params["out_sharding"] is not None:
        return False
    precision = eqn.params["precision"]
    return precision is None or (type(precision) is tuple and len({*precision}) == 1)


def _exchange(product: Any) -> tuple[int, ...]:
    """The transposition of a product's result that puts the second operand's axes first."""
    (contracted, _), (batch, _) = product.params["dimension_numbers"]
    rank, first = len(product.outvars[0].aval.shape), len(batch)
    second = product.invars[0].aval.ndim - len(contracted)
    return (*range(first), *range(second, rank), *range(first, second))


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


FEW_BYTES = 4096


def in_a_branch(always: jax.Array, step: ClosedJaxpr, run: Callable[[], list[Any]]) -> list[Any]:
    """`run()`, the residuals of a step; on CPU as one branch of a `cond` whose predicate always
    holds, so that XLA does not compute the residuals again in each kernel that needs them.

    A `lax.optimization_barrier` helps less: XLA for CPU may fuse around it, or removes it first.
    The branch costs copies of what goes through it, so there is none for up to `FEW_BYTES`, and
    none in steps with products: products are kernels of their own, and weights would be copied.
    Where a product is not named as one, the copies take time, and nothing else. Values in the
    host's memory cannot leave a branch, and zeros would lose their sharding there. A step with
    loops, whose residuals would be copied, has a barrier instead, which jax 0.12 keeps.
    """
    if "branch" in turned_off or jax.device_count() > 1 or has_equation(step, *having("product")):
        return run()
    traced = jax.make_jaxpr(run)()
    if bytes_of(traced.out_avals) <= FEW_BYTES or any(map(is_host_type, traced.out_avals)):
        return call_jaxpr(traced)()
    jitted = jax.jit(call_jaxpr(traced))  # not traced again for each branch
    never = lambda: list(map(zeros, traced.out_avals))  # noqa: E731
    branch = lambda: lax.cond(always, jitted, never)  # noqa: E731
    has_loop = has_equation(step, "scan", "while", "checkpointed_loop")
    on_cpu = (lambda: barrier(jitted())) if has_loop else branch
    return lax.platform_dependent(cpu=on_cpu, default=jitted)


def with_reads_first(pullback: ClosedJaxpr) -> ClosedJaxpr:
    """The pullback, changed so that XLA writes in place into arrays whose entries it also reads.

    If a step writes entries of an array, the pullback reads these entries of its cotangent and then
    sets them to zero. XLA for CPU inserts copies before it orders operations, and would fuse the
    read into each kernel that needs it. So the read is a branch of its own, and the write depends
    on it.
    """
    closed = with_slices(pullback)
    pairs = Uses(closed).writes_with_reads()
    if not pairs or "reads" in turned_off:
        return pullback
    return jax.make_jaxpr(partial(run_reads_first, closed, pairs))(*closed.in_avals)


def run_reads_first(closed: Any, pairs: Sequence[tuple[Any, list[Any]]], *inputs: Any) -> list[Any]:
    """The results of a jaxpr, in which each of these writes depends on the reads beside it."""
    before = {id(writer): readers for writer, readers in pairs}
    readers = {id(reader) for readers in before.values() for reader in readers}
    equations: dict[int, Any] = {}
    for eqn in closed.eqns:
        for each in (*before.get(id(eqn), ()), eqn):
            equations.setdefault(id(each), each)
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


def _read_alone(eqn: Any, operands: list[Any]) -> jax.Array:
    """The entries that an equation reads, on CPU in a branch. Both branches are equal."""

    def read() -> jax.Array:
        return run_in_place(eqn, operands)[0]

    def branch() -> jax.Array:
        return lax.cond(any_example(jnp.any(operands[1] >= 0)), read, read)

    if not operands[1:]:  # all of a scalar, at no index
        return read()
    return lax.platform_dependent(cpu=branch, default=read)


def _after(entries: list[jax.Array], update: jax.Array) -> jax.Array:
    """The update, made to depend on these entries: XLA does not know that no number is less than
    itself."""
    for entry in map(jnp.real, entries):
        never = entry < entry
        never = never if entry.shape == update.shape else jnp.any(never)
        update = lax.select(never, lax.full_like(update, 1), update)
    return update
