"""The nested engine: scans inside scans, each step of each level under `jax.checkpoint`.

It consists of ordinary JAX, so every transformation works on it. The derivatives of the slots
engine's reverse sweep are those of this engine's pullback. With L levels, a loop of n steps stores
about L n**(1/L) carries and evaluates each step L + 1 times.

A while loop is nested up to its bound. Each block of each level is in a branch that runs only while
the loop goes on.

The pullback is written out level by level rather than left to JAX's transposition, so that its own
derivatives stay as small: a reverse scan whose steps are under `jax.checkpoint` keeps one carry and
one cotangent for each step, and no residuals.

Before jax 0.12, the linearization of a scan takes `custom_jvp` functions in its body apart: it
looks for what all steps share by partial evaluation, and drops the rules of functions of the carry.
The next derivative then does not use their rules, and is wrong or an error where they matter. A
conditional that depends on the step stays whole. The blocks of a while loop are in one. The blocks
of a scan are in one without another branch, if the step has such a function.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import has_custom_jvp, kept_whole
from jax_revolve.schedule.nested import levels, nests
from jax_revolve.step.activity import Activity
from jax_revolve.step.examples import any_example, going, guarded, safe_operands
from jax_revolve.step.loop import Loop, Operands, Step, plan_of, with_layout
from jax_revolve.step.primal_half import with_primal_half
from jax_revolve.step.pullback import Cotangents, add, of_init, pull_back_step, zero_cotangents

Lengths = tuple[int, ...]
T = TypeVar("T")


class _Shared(NamedTuple):
    """The data that all nests share: `half` is the loop with the primal half of its step, `safe`
    holds `safe_operands`."""

    loop: Loop
    half: Loop
    activity: Activity
    consts: list[Any]
    safe: Operands

    def step(self, carry: list[Any]) -> Step:
        """The step from this carry."""
        return guarded(self.loop, self.safe.carry, going(self.loop, self.consts, carry))

    def half_step(self, carry: list[Any]) -> Step:
        """The primal half of the step from this carry."""
        return guarded(self.half, self.safe.carry, going(self.loop, self.consts, carry))

    def while_going(
        self, carry: list[Any], number: Any, run: Callable[[], T], skip: Callable[[], T]
    ) -> T:
        """`run()`, or `skip()` if the loop is over with this carry."""
        if self.loop.condition is not None:
            return lax.cond(any_example(self.loop.holds(self.consts, carry)), run, skip)
        return run() if number is None else kept_whole(run, number)

    def numbers(self, length: int) -> Any:
        """The numbers of the blocks of a scan that must be kept whole; `None` for other loops."""
        if self.loop.condition is None and has_custom_jvp(self.loop.jaxpr):
            return jnp.arange(length, dtype=jnp.int32)
        return None


def pull_back_nested(
    loop: Loop, activity: Activity, operands: Operands, cotangents: Cotangents
) -> Operands:
    """The cotangents of the active operands, from those of the active results."""
    half, operands = with_primal_half(loop, activity), with_layout(loop, operands)
    shared = _Shared(loop, half, activity, operands.consts, safe_operands(loop, operands))
    carry, parts = operands.carry, []
    for lengths, rows in _nests(loop):
        xs = _cut(operands.xs, rows)
        carry, starts = _keep_starts(shared, lengths, carry, xs)
        parts.append((lengths, rows, starts, xs))

    ct_carry, ct_xs = cotangents.carry, []
    ct_consts = zero_cotangents(operands.consts, activity.consts)
    for lengths, rows, starts, xs in reversed(parts):
        part = Cotangents(ct_carry, _cut(cotangents.ys, rows))
        ct = _pull_back_nest(shared, lengths, starts, xs, part)
        ct_consts, ct_carry = add(ct_consts, ct.consts), ct.carry
        ct_xs.append(ct.xs)
    return Operands(ct_consts, of_init(ct_carry, activity), _join(loop, ct_xs[::-1]))


def _keep_starts(
    shared: _Shared, lengths: Lengths, carry: list[Any], xs: list[Any]
) -> tuple[list[Any], list[Any]]:
    """The final carry, and the carries that enter the blocks of the outermost loop."""
    length, *inner = lengths

    @partial(jax.checkpoint, prevent_cse=False)
    def advance(carry: list[Any], x: list[Any], number: Any) -> list[Any]:
        def run() -> list[Any]:
            if inner:
                return _keep_starts(shared, tuple(inner), carry, x)[0]
            return shared.half_step(carry)(shared.safe.consts, carry, x)[0]

        return shared.while_going(carry, number, run, lambda: carry)

    def block(carry: list[Any], x: tuple[list[Any], Any]) -> tuple[list[Any], list[Any]]:
        return advance(carry, *x), carry

    inputs = (_split_leading(xs, length) if inner else xs, shared.numbers(length))
    return lax.scan(block, carry, inputs, length, reverse=shared.loop.reverse)


def _pull_back_nest(
    shared: _Shared, lengths: Lengths, starts: list[Any], xs: list[Any], cotangents: Cotangents
) -> Operands:
    """`pull_back_nested` for one nest, given the carries that enter its blocks."""
    length, *inner = lengths
    consts, mask = shared.safe.consts, shared.activity.consts

    @partial(jax.checkpoint, prevent_cse=False)
    def pull_back_block(start: list[Any], x: list[Any], ct: Cotangents, number: Any) -> Operands:
        def run() -> Operands:
            if inner:
                _, inner_starts = _keep_starts(shared, tuple(inner), start, x)
                return _pull_back_nest(shared, tuple(inner), inner_starts, x, ct)
            inputs = Operands(consts, start, x)
            return pull_back_step(shared.step(start), shared.activity, inputs, ct)

        def skip() -> Operands:
            return Operands(zero_cotangents(consts, mask), ct.carry, [])

        return shared.while_going(start, number, run, skip)

    def block(state: tuple[Any, Any], inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        ct_consts, ct_carry = state
        start, x, ct_y, number = inputs
        ct = pull_back_block(start, x, Cotangents(ct_carry, ct_y), number)
        # Added outside the checkpoint: the derivative of the pullback need not keep the sum.
        return (add(ct_consts, ct.consts), ct.carry), ct.xs

    state = (zero_cotangents(consts, mask), cotangents.carry)
    ct_ys = cotangents.ys
    if inner:
        xs, ct_ys = _split_leading(xs, length), _split_leading(ct_ys, length)
    (ct_consts, ct_carry), ct_xs = lax.scan(
        block,
        state,
        (starts, xs, ct_ys, shared.numbers(length)),
        length,
        reverse=not shared.loop.reverse,
    )
    return Operands(ct_consts, ct_carry, _merge_leading(ct_xs) if inner else ct_xs)


# The slices of xs and ys of each nest


def _nests(loop: Loop) -> list[tuple[Lengths, slice]]:
    """The nests in the order in which they run, and the slice of xs and ys of each."""
    plan = plan_of(loop)
    result, first, length = [], 0, plan.length
    for lengths in nests(length, levels(plan)):
        last = first + prod(lengths)
        at = slice(length - last, length - first) if loop.reverse else slice(first, last)
        result.append((lengths, at))
        first = last
    return result


def _cut(buffers: list[Any], rows: slice) -> list[Any]:
    return [b if b is None else b[rows] for b in buffers]


def _join(loop: Loop, parts: list[list[Any]]) -> list[Any]:
    """Each buffer, from its parts in the order in which the nests run."""
    in_place = reversed(parts) if loop.reverse else parts
    return [p[0] if len(p) == 1 else jnp.concatenate(p) for p in zip(*in_place, strict=True)]


def _split_leading(buffers: list[Any], blocks: int) -> list[Any]:
    return [
        b if b is None else b.reshape(blocks, b.shape[0] // blocks, *b.shape[1:]) for b in buffers
    ]


def _merge_leading(buffers: list[Any]) -> list[Any]:
    return [b.reshape(b.shape[0] * b.shape[1], *b.shape[2:]) for b in buffers]
