"""A loop as data, made from the equation that `lax.scan` or `lax.while_loop` traces."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, facts_of, with_equations
from jax_revolve._compat.memories import is_host_type, is_on_host, typed_as_on_host
from jax_revolve._compat.values import AbstractValue, as_array, explicit_mesh, laid_out
from jax_revolve.jaxprs.parts import without_dead_code
from jax_revolve.schedule.options import Options
from jax_revolve.schedule.plan import Plan

T = TypeVar("T")
Mask: TypeAlias = tuple[bool, ...]

Step: TypeAlias = Callable[[list[Any], list[Any], list[Any]], tuple[list[Any], list[Any]]]
"""From consts, carry and one slice of the xs to carry and one slice of the ys."""


class Operands(NamedTuple):
    """The operands of a loop, or one value for each of them."""

    consts: list[Any]
    carry: list[Any]
    xs: list[Any]

    @property
    def types(self) -> tuple[AbstractValue, ...]:
        return tuple(jax.typeof(x) for part in self for x in part)


class Trust(NamedTuple):
    """How far a carry that an inverse computes may be from the exact one: the `tolerance`, by
    default the square root of each leaf's epsilon, and whether to `throw` an error beyond it.

    `source` says where the step is, `leaves` are the names of the carry's leaves, and `examples`
    the number of leading axes of each that `jax.vmap` mapped over.
    """

    tolerance: float | None
    throw: bool
    source: str
    leaves: tuple[str, ...]
    examples: tuple[int, ...]


class Loop(NamedTuple):
    """A loop: what one step computes, how often it runs, and how it is reversed.

    `jaxpr` takes consts, carry and one slice of the xs, and returns the carry and one slice of the
    ys. `output_types` are the types of the final carry and the whole ys.

    With a `condition`, it is a while loop, without xs and ys. The condition takes the first
    `num_condition_consts` consts and the carry; the step takes the other consts. `length` is the
    bound, or `None`, and the plan is for a loop that reaches it.

    A loop that cannot be reversed has no plan. The plan may be a request, which is resolved when
    the loop is differentiated, because the size of its residuals is unknown before.

    A loop is one parameter of our primitives. It is a tuple because JAX only finds jaxprs in
    parameters that are jaxprs or tuples, to collect their devices, memories and constants.
    """

    jaxpr: ClosedJaxpr
    num_consts: int
    num_carry: int
    output_types: tuple[AbstractValue, ...]
    effects: Any
    condition: ClosedJaxpr | None = None
    num_condition_consts: int = 0
    length: int | None = None
    reverse: bool = False
    unroll: int = 1
    plan: Plan | Options | None = None
    obstacle: str | None = None
    """Why the loop is always lax's own, if it is."""
    has_examples: bool = False
    """Whether it drops the results of steps of examples that are done."""
    inverse: ClosedJaxpr | None = None
    """The carry before a step, from consts, the carry after it, its x and its y. With it, blocks of
    steps are walked back rather than taped."""
    trust: Trust | None = None

    def with_plan(self, length: int | None, plan: Plan | Options | None) -> "Loop":
        """The loop with this length or bound, without dead code in its step, which may call a
        function that has no forward mode. `jax.jit` would remove dead code, too."""
        jaxpr = without_dead_code(self.jaxpr)
        return self._replace(jaxpr=jaxpr, length=length, plan=plan)

    def __repr__(self) -> str:
        """For the text of a jaxpr: without fields that are `None`."""
        fields = (f"{name}={x}" for name, x in self._asdict().items() if x is not None)
        return f"Loop({', '.join(fields)})"

    def operands(self, flat: Sequence[Any]) -> Operands:
        """A flat sequence with one entry per operand, split into groups."""
        first, last = self.num_consts, self.num_consts + self.num_carry
        return Operands(list(flat[:first]), list(flat[first:last]), list(flat[last:]))

    def results(self, flat: Sequence[T]) -> tuple[list[T], list[T]]:
        """A flat sequence with one entry per result, split into carry and ys."""
        return list(flat[: self.num_carry]), list(flat[self.num_carry :])

    def step(
        self, consts: list[Any], carry: list[Any], x: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        used, types = consts[self.num_condition_consts :], self.jaxpr.in_avals
        # An entry of xs in the host's memory is read from there: see `storage.buffers`.
        pairs = zip(x, types[len(types) - len(x) :], strict=True)
        x = [typed_as_on_host(v) if is_host_type(t) and not is_on_host(v) else v for v, t in pairs]
        return self.results(call_jaxpr(self.jaxpr)(*used, *carry, *x))

    def holds(self, consts: list[Any], carry: list[Any]) -> Any:
        """Whether the condition holds, so the loop goes on."""
        (go_on,) = call_jaxpr(self.condition)(*consts[: self.num_condition_consts], *carry)
        return go_on

    @property
    def bare(self) -> "Loop":
        """The loop without its plan, on which no step depends."""
        return self._replace(plan=None)

    @property
    def all_ys(self) -> Mask:
        return (True,) * (len(self.output_types) - self.num_carry)

    def entry(self, step: Any) -> Any:
        """The index in xs and ys of step number `step`."""
        return self.steps - 1 - step if self.reverse else step

    @property
    def steps(self) -> int:
        """The number of steps of a scan."""
        assert self.length is not None
        return self.length


def for_loop(start: Any, stop: Any, body: Callable[[Any, T], T], state: T) -> T:
    """`lax.fori_loop`, as a while loop even for static numbers, where lax would make a scan, trace
    it again to lower it, and count twice. XLA compiles both to the same loop."""
    if not (isinstance(start, int) and isinstance(stop, int)):
        return lax.fori_loop(start, stop, body, state)

    def step(counted: tuple[Any, T]) -> tuple[Any, T]:
        i, state = counted
        return lax.add(i, np.int32(1)), body(i, state)

    is_before = lambda counted: lax.lt(counted[0], np.int32(stop))  # noqa: E731
    return lax.while_loop(is_before, step, (np.int32(start), state))[1]


def with_layout(loop: Loop, operands: Operands) -> Operands:
    """The operands, all laid out over the explicit mesh of any of them. `jax.lax` accepts an
    initial carry without a mesh where the step returns one with a mesh, but slots are made from the
    initial carry and hold later ones, so both need the same layout."""
    types = [*map(jax.typeof, operands.consts), *loop.output_types, *map(jax.typeof, operands.xs)]
    mesh = explicit_mesh(types)
    if mesh is None:
        return operands
    carry, _ = loop.results(loop.output_types)

    def replicated(value: Any) -> Any:
        value = as_array(value)
        return laid_out(value, mesh, jax.P(*[None] * value.ndim))

    return Operands(
        consts=list(map(replicated, operands.consts)),
        carry=[
            laid_out(x, mesh, t.sharding.spec) for x, t in zip(operands.carry, carry, strict=True)
        ],
        xs=list(map(replicated, operands.xs)),
    )


def plan_of(loop: Loop) -> Plan:
    """The plan of a loop that is reversed, which must have been chosen."""
    check_plan(loop)
    assert not isinstance(loop.plan, Options | None)
    return loop.plan


class NoReverseMode(ValueError):
    """A while loop has neither a bound nor a number of checkpoints, so it has no reverse mode."""


def check_plan(loop: Loop) -> None:
    """Refuse to reverse a loop without a plan, or a loop that has lost its inverse."""
    if loop.trust is not None and loop.inverse is None:
        raise NotImplementedError(
            "inverse must be None where jax.vmap of a while loop is differentiated: its examples "
            "take different numbers of steps. Take jax.vmap of the gradient instead."
        )
    if loop.plan is None:
        raise NoReverseMode(
            "max_steps and checkpoints must not both be None where a while loop is differentiated "
            "in reverse mode. Pass max_steps, the most steps that the loop may take, or "
            "checkpoints, the number of carries to store."
        )


def is_inexact(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)


def once(function: Any, key: tuple[Hashable, ...], find: Callable[[], T]) -> T:
    """`find()`, or its earlier result for this very function and an equal key.

    JAX traces the step of an outer loop several times, and each trace needs the same facts about
    the loops inside. Without this cache, the time would grow exponentially with the depth of the
    nest. The function is a loop, or another tuple that begins with a jaxpr, which holds its facts:
    they are forgotten together. `find` must not return tracers. Threads that call it at once,
    because no lock is held while JAX traces, all get the result that is stored first.
    """
    jaxpr, *rest = function
    known = facts_of(jaxpr)
    key += _without(jaxpr, tuple(rest))
    return known[key] if key in known else known.setdefault(key, find())


def _without(jaxpr: ClosedJaxpr, fields: tuple[Any, ...]) -> tuple[Any, ...]:
    """The fields of a function without its jaxpr, which need not be hashed again. The fields may be
    functions with the same jaxpr."""
    return tuple(
        _without(jaxpr, field[1:]) if isinstance(field, tuple) and field[:1] == (jaxpr,) else field
        for field in fields
    )


def with_carries(
    loop: Loop,
    start: Sequence[Any],
    step: Callable[..., list[Any]],
    back: Callable[..., list[Any]],
) -> Loop:
    """The loop with further carries after its own, of the types of `start`, which each step changes
    by `step` and an inverse by `back`. The condition does not read them."""
    changes = [jax.make_jaxpr(f)(*start) for f in (step, back, lambda *carry: carry)]
    types = tuple(map(jax.typeof, start))

    def changed(closed: Any, change: Any, carry: int, results: int | None) -> Any:
        if closed is None:
            return None
        jaxpr, more = closed.jaxpr, change.jaxpr
        invars, outvars = list(jaxpr.invars), list(jaxpr.outvars)
        invars[carry:carry] = more.invars
        if results is not None:
            outvars[results:results] = more.outvars
        eqns, effects = [*more.eqns, *jaxpr.eqns], jaxpr.effects | more.effects
        return with_equations(closed, eqns, invars=invars, outvars=outvars, effects=effects)

    carry, ys = loop.results(loop.output_types)
    first, count, trust = loop.num_condition_consts, loop.num_carry, loop.trust
    at = loop.num_consts - first + count
    if trust is not None:
        trust = trust._replace(
            leaves=(*trust.leaves, *("a counter" for _ in start)),
            examples=(*trust.examples, *(0 for _ in start)),
        )
    return loop._replace(
        jaxpr=changed(loop.jaxpr, changes[0], at, count),
        inverse=changed(loop.inverse, changes[1], at, count),
        condition=changed(loop.condition, changes[2], first + count, None),
        num_carry=count + len(start),
        output_types=(*carry, *types, *ys),
        effects=loop.effects | changes[0].effects,
        trust=trust,
    )
