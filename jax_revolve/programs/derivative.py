"""The derivative that runs, and what its loops decided in it.

A loop chooses its plan where it is linearized. So we trace the derivative of a program and read the
forward sweeps in it: each has its loop, with the plan, and what is differentiated. The loops inside
a step are in the step's linearized code; under `jax.checkpoint`, they are linearized where that
code is transposed. Why not a recorder at the place where plans are chosen: JAX and we keep traces,
so it would miss every loop that was linearized before.

A loop is known again by its key, a scope around its equation.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat.functions import Mask
from jax_revolve._compat.jaxprs import call_jaxpr, with_equations
from jax_revolve._compat.values import (
    bytes_of,
    pick,
    substitute,
    with_weak_type,
    zeros,
)
from jax_revolve.autodiff.batching import within as within_axes
from jax_revolve.autodiff.refusal import refusal_p
from jax_revolve.autodiff.reverse import reverse_sweep_into_p
from jax_revolve.autodiff.sweeps import Sweep, forward_sweep_p, reverse_sweep_p
from jax_revolve.engine.tape.tape import sizes_of, taped_step
from jax_revolve.jaxprs.equations import KEYED, is_shard_map
from jax_revolve.jaxprs.evaluate import within
from jax_revolve.jaxprs.walk import inner_jaxprs, inner_programs, with_inner_programs
from jax_revolve.schedule import cost
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.plan import Plan
from jax_revolve.step.linearized import Activity
from jax_revolve.step.loop import Loop, Operands, is_inexact, plan_of

Key: TypeAlias = tuple[int, ...]
"""The path to an equation: the index of an equation, of a jaxpr in it, of an equation there, ..."""


class Decided(NamedTuple):
    """What a loop decided where it was linearized."""

    loop: Loop
    activity: Activity
    sizes: Sizes
    types: Operands

    @property
    def plan(self) -> Plan:
        return plan_of(self.loop)

    @property
    def is_while(self) -> bool:
        return self.loop.condition is not None

    def pushed(self) -> "Decided":
        """With a tangent beside all that is kept."""
        kept = ("checkpoint", "residuals", "alone", "carry", "again", "factors", "journal")
        twice = {name: 2 * getattr(self.sizes, name) for name in kept}
        return self._replace(sizes=self.sizes._replace(**twice))

    @property
    def held(self) -> int:
        """The bytes between its sweeps."""
        return cost.held(self.plan, self.sizes, is_while=self.is_while)

    @property
    def always(self) -> dict[str, int]:
        active, (_, ys) = self.activity, self.loop.results(self.loop.output_types)
        return {
            "xs": bytes_of(self.types.xs),
            "cotangents of xs": bytes_of(pick(self.types.xs, active.xs)),
            "ys": bytes_of(ys),
            "cotangents of ys": bytes_of(pick(ys, active.ys)),
            "cotangents of closed-over values": bytes_of(pick(self.types.consts, active.consts)),
        }


def with_keys(jaxpr: Any, keys: set[Key], around: Key = ()) -> Any:
    """The program with the key of each of these loops as its innermost scope, and without errors
    for loops that have no reverse mode."""

    def with_key(index: int, eqn: Any) -> Any:
        key = (*around, index)
        if eqn.primitive is refusal_p:
            return eqn.replace(primitive=lax.optimization_barrier_p, params={})
        if not any(other[: len(key)] == key for other in keys):
            return eqn
        new = [with_keys(p, keys, (*key, i)) for i, p in enumerate(inner_programs(eqn))]
        eqn = with_inner_programs(eqn, new) if new else eqn
        if key not in keys:
            return eqn
        stack = eqn.source_info.name_stack.extend(scope_of(key))
        return eqn.replace(source_info=eqn.source_info.replace(name_stack=stack))

    return with_equations(jaxpr, [with_key(*pair) for pair in enumerate(jaxpr.eqns)])


def scope_of(key: Key) -> str:
    return f"{KEYED}{'.'.join(map(str, key))}"


def gradient_of(closed: Any, mask: Mask) -> Any:
    """The gradient of a program in the inputs that `mask` marks, as `jax.vjp` traces it."""

    def gradient(*inputs: Any) -> Any:
        def run(chosen: Any) -> Any:
            results = call_jaxpr(closed)(*substitute(inputs, mask, chosen))
            return [x for x in results if hasattr(x, "dtype") and is_inexact(x)]

        values, pull_back = jax.vjp(run, pick(inputs, mask))
        return values, pull_back(list(map(jnp.ones_like, values)))

    return jax.make_jaxpr(gradient)(*closed.in_avals)


class Found(NamedTuple):
    """An equation of a program, its key, what it decided if it is a forward sweep, and the
    equations around it."""

    eqn: Any
    key: Key
    decided: Decided | None
    around: tuple[Any, ...]


def is_forward_sweep(eqn: Any) -> bool:
    """Whether an equation is a forward sweep, or one pushed forward."""
    return eqn.primitive.name.removesuffix("_jvp") == forward_sweep_p.name


def equations(
    jaxpr: Any,
    around: tuple[Any, ...] = (),
    key: Key = (),
    *,
    is_sweep: Callable[[Any], bool] = is_forward_sweep,
) -> Iterator[Found]:
    """The equations of a program and of the linearized steps in its sweeps, outer ones first."""
    for index, eqn in enumerate(jaxpr.eqns):
        here, decided, programs = (*key, index), None, inner_jaxprs(eqn)
        if is_sweep(eqn):
            find = partial(_decided, eqn.params["function"])
            decided, programs = within(tuple(filter(is_shard_map, around)), find)
            is_pushed = any(is_sweep(e) and _is_pushed(e) for e in (*around, eqn))
            decided = decided.pushed() if is_pushed else decided
        yield Found(eqn, here, decided, around)
        for part, inner in enumerate(programs):
            yield from equations(inner, (*around, eqn), (*here, part), is_sweep=is_sweep)


def _is_pushed(sweep: Any) -> bool:
    return sweep.primitive.name.endswith("_jvp")


def _decided(sweep: Sweep) -> tuple[Decided, list[Any]]:
    """What a sweep's loop decided, and the programs in which the loops of its step are."""
    loop, types = sweep.loop, _types(sweep.loop)
    like = lambda t: with_weak_type(zeros(t), t)  # noqa: E731

    def find() -> tuple[Decided, list[Any]]:
        operands = Operands(*(list(map(like, part)) for part in types))
        step = sweep.linearized_step(loop, operands)
        sizes = sizes_of(loop, step, operands, sweep.journal)
        in_reverse = [step.transposed] if taped_step(step).is_transposable else []
        return Decided(loop, sweep.activity, sizes, types), [step.code, *in_reverse]

    return within_axes(sweep.vmaps, find)


def _types(loop: Loop) -> Operands:
    """The types of the operands of one example."""
    first = loop.num_condition_consts
    of_condition = loop.condition.in_avals[:first] if loop.condition is not None else []
    consts, carry, xs = loop.operands([*of_condition, *loop.jaxpr.in_avals])
    length = max(loop.length or 1, 1)
    return Operands(consts, carry, [x.update(shape=(length, *x.shape)) for x in xs])


Decisions: TypeAlias = Mapping[Key, Decided]


def decisions(jaxpr: Any, keys: Set[Key]) -> Decisions:
    """What each loop with one of these keys decided in a derivative. Those that carry nothing
    between their steps are not swept forward: only their reverse sweep is there."""
    found = _decisions(jaxpr, is_forward_sweep)
    if not keys <= found.keys():
        late = _decisions(jaxpr, lambda e: is_forward_sweep(e) or is_reverse_sweep(e))
        found |= {key: late[key] for key in late.keys() - found.keys()}
    return found


def _decisions(jaxpr: Any, is_sweep: Callable[[Any], bool]) -> dict[Key, Decided]:
    found: dict[Key, Decided] = {}
    for eqn, _, decided, around in equations(jaxpr, is_sweep=is_sweep):
        if decided is not None and (key := _key_of((*around, eqn))) is not None:
            found.setdefault(key, decided)
    return found


def is_reverse_sweep(eqn: Any) -> bool:
    name = eqn.primitive.name.removesuffix("_jvp")
    return name in (reverse_sweep_p.name, reverse_sweep_into_p.name)


def _key_of(equations: Sequence[Any]) -> Key | None:
    """The key of a sweep, in its own scope or in the scope of a function that was called in
    its place."""
    for eqn in reversed(equations):
        if keys := re.findall(rf"{KEYED}([\d.]+)", str(eqn.source_info.name_stack)):
            return tuple(map(int, keys[-1].split(".")))
        if eqn is not equations[-1] and eqn.primitive is forward_sweep_p:
            return None
    return None
