"""The nested engine: scans inside scans, each step of each level under `jax.checkpoint`.

It is made of ordinary JAX, so every transformation works on it: it answers wherever the slots
engine cannot, and it is what the slots engine's own derivatives are derivatives of. With L levels a
loop of n steps stores about L n**(1/L) carries and evaluates each step L + 1 times.

The pullback is written out level by level rather than left to JAX's transposition, so that its own
derivatives stay as small: a reverse scan whose steps are under `jax.checkpoint` keeps one carry and
one cotangent per step, and no residual.
"""

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve.engine.activity import Activity
from jax_revolve.engine.loop import Loop, Operands, Step
from jax_revolve.engine.pullback import (
    Cotangents,
    add,
    of_init,
    primal_half,
    pull_back_step,
    zero_cotangents,
)
from jax_revolve.schedule.nested import levels, nests

Lengths = tuple[int, ...]


def run_nested(loop: Loop, step: Step, operands: Operands) -> list[Any]:
    """Final carry and ys."""
    carry, ys = operands.carry, []
    for lengths, place in _nests(loop):
        xs = _cut(operands.xs, place)
        carry, y = _run_nest(loop, step, lengths, operands._replace(carry=carry, xs=xs))
        ys.append(y)
    return [*carry, *_join(loop, ys)]


def pull_back_nested(
    loop: Loop, activity: Activity, operands: Operands, cotangents: Cotangents
) -> Operands:
    """The cotangents of the active operands, from those of the active results."""
    carry, parts = operands.carry, []
    for lengths, place in _nests(loop):
        inputs = operands._replace(carry=carry, xs=_cut(operands.xs, place))
        carry, starts = _keep_starts(loop, lengths, inputs)
        parts.append((lengths, place, inputs._replace(carry=starts)))

    ct_carry, ct_xs = cotangents.carry, []
    ct_consts = zero_cotangents(operands.consts, activity.consts)
    for lengths, place, inputs in reversed(parts):
        part = Cotangents(ct_carry, _cut(cotangents.ys, place))
        ct = _pull_back_nest(loop, activity, lengths, inputs, part)
        ct_consts, ct_carry = add(ct_consts, ct.consts), ct.carry
        ct_xs.append(ct.xs)
    return Operands(ct_consts, of_init(ct_carry, activity), _join(loop, ct_xs[::-1]))


def _run_nest(
    loop: Loop, step: Step, lengths: Lengths, operands: Operands
) -> tuple[list[Any], list[Any]]:
    _, *inner = lengths

    def block(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        if inner:
            inputs = operands._replace(carry=carry, xs=x)
            return _run_nest(loop, step, tuple(inner), inputs)
        return step(operands.consts, carry, x)

    carry, ys = _scan(loop, lengths, jax.checkpoint(block, prevent_cse=False), operands)
    return carry, _merge_leading(ys) if inner else ys


def _keep_starts(loop: Loop, lengths: Lengths, operands: Operands) -> tuple[list[Any], list[Any]]:
    """The final carry, and the carry that enters each block of the outermost loop."""
    _, *inner = lengths
    step = primal_half(loop.step)

    def block(carry: list[Any], x: list[Any]) -> list[Any]:
        if inner:
            inputs = operands._replace(carry=carry, xs=x)
            return _run_nest(loop, step, tuple(inner), inputs)[0]
        return step(operands.consts, carry, x)[0]

    advance = jax.checkpoint(block, prevent_cse=False)
    return _scan(loop, lengths, lambda carry, x: (advance(carry, x), carry), operands)


def _pull_back_nest(
    loop: Loop, activity: Activity, lengths: Lengths, starts: Operands, cotangents: Cotangents
) -> Operands:
    """As `pull_back_nested`, for one nest; the carry is that which enters each of its blocks."""
    length, *inner = lengths
    consts, start, xs = starts

    @partial(jax.checkpoint, prevent_cse=False)
    def pull_back_block(
        consts: list[Any], start: list[Any], x: list[Any], ct: Cotangents
    ) -> Operands:
        inputs = Operands(consts, start, x)
        if inner:
            inputs = inputs._replace(carry=_keep_starts(loop, tuple(inner), inputs)[1])
            return _pull_back_nest(loop, activity, tuple(inner), inputs, ct)
        return pull_back_step(loop, activity, inputs, ct)

    def block(state: tuple[Any, Any], inputs: tuple[Any, Any, Any]) -> tuple[Any, Any]:
        ct_consts, ct_carry = state
        start, x, ct_y = inputs
        ct = pull_back_block(consts, start, x, Cotangents(ct_carry, ct_y))
        # Added up outside of the checkpoint: it need not be kept for the derivative of this.
        return (add(ct_consts, ct.consts), ct.carry), ct.xs

    state = (zero_cotangents(consts, activity.consts), cotangents.carry)
    if inner:
        xs, ct_ys = _split_leading(xs, length), _split_leading(cotangents.ys, length)
    else:
        ct_ys = cotangents.ys
    (ct_consts, ct_carry), ct_xs = lax.scan(
        block, state, (start, xs, ct_ys), length, reverse=not loop.reverse
    )
    return Operands(ct_consts, ct_carry, _merge_leading(ct_xs) if inner else ct_xs)


def _scan(loop: Loop, lengths: Lengths, block: Any, operands: Operands) -> tuple[Any, Any]:
    """The outermost loop of a nest over blocks of its xs."""
    length, *inner = lengths
    xs = _split_leading(operands.xs, length) if inner else operands.xs
    return lax.scan(block, operands.carry, xs, length, reverse=loop.reverse)


# Where the nests stand in xs and ys


def _nests(loop: Loop) -> list[tuple[Lengths, slice]]:
    """The nests in the order in which they run, and the part of xs and ys that each works on."""
    result, first = [], 0
    for lengths in nests(loop.length, levels(loop.plan.repetitions)):
        last = first + prod(lengths)
        at = slice(loop.length - last, loop.length - first) if loop.reverse else slice(first, last)
        result.append((lengths, at))
        first = last
    return result


def _cut(buffers: list[Any], place: slice) -> list[Any]:
    return [b if b is None else b[place] for b in buffers]


def _join(loop: Loop, parts: list[list[Any]]) -> list[Any]:
    """The parts of each buffer, given in the order in which the nests run."""
    in_place = reversed(parts) if loop.reverse else parts
    return [p[0] if len(p) == 1 else jnp.concatenate(p) for p in zip(*in_place, strict=True)]


def _split_leading(buffers: list[Any], blocks: int) -> list[Any]:
    return [
        b if b is None else b.reshape(blocks, b.shape[0] // blocks, *b.shape[1:]) for b in buffers
    ]


def _merge_leading(buffers: list[Any]) -> list[Any]:
    return [b.reshape(b.shape[0] * b.shape[1], *b.shape[2:]) for b in buffers]
