"""The nested engine: scans inside scans, each step of each level under `jax.checkpoint`.

It consists of ordinary JAX, so every transformation works on it. The derivatives of the slots
engine's reverse sweep are those of this engine's pullback.

There are at most two levels. The outer one stores a checkpoint for each block of steps. In a block,
what is kept of each step is stored (see `tape`), so that a step runs twice before it is pulled
back, or once if there is a single level. Where that takes too much memory, checkpoints are stored
in a block, too, and a step runs once more: see `schedule.nested`.

A while loop is nested up to its bound. Each block of each level is in a branch that runs only while
the loop goes on.

The pullback is written out level by level rather than left to JAX's transposition, so that its own
derivatives stay as small: a reverse scan whose steps are under `jax.checkpoint` keeps one carry and
one cotangent for each step, and no residuals.

Before jax 0.12, the linearization of a scan takes `custom_jvp` functions in its body apart: it
looks for what all steps share by partial evaluation, and drops the rules of functions of the carry.
The next derivative then does not use their rules, and is wrong or an error where they matter. A
conditional that depends on the step stays whole. The blocks of a while loop are in one. The blocks
of a scan are in one without another branch, if the step has such a function. A tape has no rules,
so steps with functions that have any are not taped.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jax_revolve._compat import bytes_of, has_custom_jvp, has_custom_vjp, kept_whole, zeros
from jax_revolve.engine.tape.taped import TapedStep, taped_step
from jax_revolve.schedule.nested import nests
from jax_revolve.step.activity import Activity
from jax_revolve.step.examples import any_example, going, guarded
from jax_revolve.step.loop import Loop, Operands, pick, plan_of, restart_of
from jax_revolve.step.primal_half import with_primal_half
from jax_revolve.step.pullback import Cotangents, add, of_init, pull_back_step, zero_cotangents
from jax_revolve.step.steps import Steps

Lengths = tuple[int, ...]
T = TypeVar("T")

once_more = partial(jax.checkpoint, prevent_cse=False)


class _Shared(NamedTuple):
    """The data that all nests share. `half` is the loop with the primal half of its step. `taped`
    is `None` if steps are not taped."""

    steps: Steps
    half: Loop
    activity: Activity
    taped: TapedStep | None

    @property
    def loop(self) -> Loop:
        return self.steps.loop

    @property
    def consts(self) -> list[Any]:
        return self.steps.safe.consts

    @property
    def of_all(self) -> list[Any]:
        """What the taped steps share."""
        safe = self.steps.safe
        return [*self.steps.operands.consts, *safe.consts, *safe.carry]

    def half_step(self, carry: list[Any], x: list[Any]) -> list[Any]:
        """The carry after a step, as its primal half computes it."""
        is_going = going(self.loop, self.steps.operands.consts, carry)
        return guarded(self.half, self.steps.safe.carry, is_going)(self.consts, carry, x)[0]

    def goes_on(self, carry: list[Any]) -> Any:
        """Whether the loop goes on for any example; `True` for a scan."""
        if self.loop.condition is None:
            return True
        return any_example(self.loop.holds(self.steps.operands.consts, carry))

    def while_going(
        self, going: Any, number: Any, run: Callable[[], T], skip: Callable[[], T]
    ) -> T:
        """`run()`, or `skip()` if the loop is over."""
        if self.loop.condition is not None:
            return lax.cond(going, run, skip)
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
    steps, half = Steps.of(loop, restart_of(loop), operands), with_primal_half(loop, activity)
    found, taped = _nests(steps, activity)
    shared = _Shared(steps, half, activity, taped)
    carry, parts = steps.operands.carry, []
    for lengths, rows in found:
        xs = _cut(steps.operands.xs, rows)
        carry, kept = _keep(shared, lengths, carry, xs)
        parts.append((lengths, rows, kept, xs))

    ct_carry, ct_xs = cotangents.carry, []
    ct_consts = zero_cotangents(operands.consts, activity.consts)
    for lengths, rows, kept, xs in reversed(parts):
        part = Cotangents(ct_carry, _cut(cotangents.ys, rows))
        ct = _pull_back_nest(shared, lengths, kept, xs, part)
        ct_consts, ct_carry = add(ct_consts, ct.consts), ct.carry
        ct_xs.append(ct.xs)
    return Operands(ct_consts, of_init(ct_carry, activity), _join(loop, ct_xs[::-1]))


class _Kept(NamedTuple):
    """What is kept of the blocks of a loop: of each, the checkpoint that it starts from or, if the
    blocks are taped steps, what is kept of the step, and whether it ran."""

    values: list[Any]
    ran: Any = None


def _advance(shared: _Shared, lengths: Lengths, carry: list[Any], xs: list[Any]) -> list[Any]:
    """The carry after a nest, without keeping anything."""
    length, *inner = lengths

    @once_more
    def advance(carry: list[Any], x: list[Any], number: Any) -> list[Any]:
        def run() -> list[Any]:
            return _advance(shared, tuple(inner), carry, x) if inner else shared.half_step(carry, x)

        return shared.while_going(shared.goes_on(carry), number, run, lambda: carry)

    inputs = (_split_leading(xs, length) if inner else xs, shared.numbers(length))
    block = lambda carry, x: (advance(carry, *x), None)  # noqa: E731
    return lax.scan(block, carry, inputs, length, reverse=shared.loop.reverse)[0]


def _keep(
    shared: _Shared, lengths: Lengths, carry: list[Any], xs: list[Any]
) -> tuple[list[Any], _Kept]:
    """The final carry, and what is kept of the blocks of the outermost loop."""
    length, *inner = lengths
    taped = None if inner else shared.taped

    @once_more
    def advance(carry: list[Any], x: list[Any], number: Any) -> tuple[list[Any], _Kept]:
        ran, checkpoint = shared.goes_on(carry), pick(carry, shared.steps.restart)

        def run() -> tuple[list[Any], list[Any]]:
            if taped is None:
                if inner:
                    return _advance(shared, tuple(inner), carry, x), checkpoint
                return shared.half_step(carry, x), checkpoint
            flat = taped.run(shared.of_all, carry, x)
            return flat[: len(carry)], flat[taped.step.num_results :]

        def skip() -> tuple[list[Any], list[Any]]:
            return carry, checkpoint if taped is None else list(map(zeros, taped.types))

        carry, values = shared.while_going(ran, number, run, skip)
        return carry, _Kept(values, None if taped is None else ran)

    def block(carry: list[Any], x: tuple[list[Any], Any]) -> tuple[list[Any], _Kept]:
        return advance(carry, *x)

    inputs = (_split_leading(xs, length) if inner else xs, shared.numbers(length))
    return lax.scan(block, carry, inputs, length, reverse=shared.loop.reverse)


def _pull_back_nest(
    shared: _Shared, lengths: Lengths, kept: _Kept, xs: list[Any], cotangents: Cotangents
) -> Operands:
    """`pull_back_nested` for one nest, given what is kept of its blocks."""
    length, *inner = lengths
    consts, mask = shared.consts, shared.activity.consts

    @once_more
    def pull_back_block(kept: _Kept, x: list[Any], ct: Cotangents, number: Any) -> Operands:
        if shared.taped is not None and not inner:
            ran, run = kept.ran, partial(_pull_back_taped, shared, kept.values, x, ct)
        else:
            start = shared.steps.whole(kept.values)
            ran = shared.goes_on(start)
            run = partial(_pull_back_from, shared, tuple(inner), start, x, ct)

        def skip() -> Operands:
            return Operands(zero_cotangents(consts, mask), ct.carry, [])

        return shared.while_going(ran, number, run, skip)

    def block(state: tuple[Any, Any], inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        ct_consts, ct_carry = state
        kept, x, ct_y, number = inputs
        ct = pull_back_block(kept, x, Cotangents(ct_carry, ct_y), number)
        # Added outside the checkpoint: the derivative of the pullback need not keep the sum.
        return (add(ct_consts, ct.consts), ct.carry), ct.xs

    state = (zero_cotangents(consts, mask), cotangents.carry)
    ct_ys = cotangents.ys
    if inner:
        xs, ct_ys = _split_leading(xs, length), _split_leading(ct_ys, length)
    (ct_consts, ct_carry), ct_xs = lax.scan(
        block,
        state,
        (kept, xs, ct_ys, shared.numbers(length)),
        length,
        reverse=not shared.loop.reverse,
    )
    return Operands(ct_consts, ct_carry, _merge_leading(ct_xs) if inner else ct_xs)


def _pull_back_from(
    shared: _Shared, inner: Lengths, start: list[Any], x: list[Any], ct: Cotangents
) -> Operands:
    """One block, from the carry that it starts from: a nest, or a single step."""
    if inner:
        _, kept = _keep(shared, inner, start, x)
        return _pull_back_nest(shared, inner, kept, x, ct)
    inputs = Operands(shared.consts, start, x)
    return pull_back_step(shared.steps.step_from(start), shared.activity, inputs, ct)


def _pull_back_taped(
    shared: _Shared, kept: list[Any], x: list[Any], cotangents: Cotangents
) -> Operands:
    """One step, from what is kept of it."""
    taped = shared.taped
    assert taped is not None
    residuals = taped.residuals([*shared.of_all, *kept, *x, *taped.same(shared.of_all)])
    return taped.pull_back(residuals, cotangents)


def _nests(
    steps: Steps, activity: Activity
) -> tuple[list[tuple[Lengths, slice]], TapedStep | None]:
    """The nests in the order in which they run, and the slice of xs and ys of each; and the step if
    steps are taped."""
    loop, plan = steps.loop, plan_of(steps.loop)
    checkpoint = bytes_of(map(jax.typeof, steps.initial()))
    has_rules = has_custom_jvp(loop.jaxpr) or has_custom_vjp(loop.jaxpr)
    taped = None if has_rules else taped_step(loop, activity, steps.operands)
    chosen = nests(plan, checkpoint, None if taped is None else taped.cut.bytes)
    result, first, length = [], 0, plan.length
    for lengths in chosen.lengths:
        last = first + prod(lengths)
        at = slice(length - last, length - first) if loop.reverse else slice(first, last)
        result.append((lengths, at))
        first = last
    return result, taped if chosen.is_taped else None


# The slices of xs and ys of each nest


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
