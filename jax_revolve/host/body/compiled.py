"""The step as compiled programs: forward, pulled back, and taped."""

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import jax

from jax_revolve._compat import call_jaxpr, results_in
from jax_revolve.host.body.same import program_key
from jax_revolve.host.placement import Values, sharding_of
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Loop, Operands, pick
from jax_revolve.step.pullback import (
    Cotangents,
    add,
    pull_back,
    pull_back_step,
    zero_cotangents,
)
from jax_revolve.step.traced import TracedStep, traced_step
from jax_revolve.storage.buffers import read


class Pulled(NamedTuple):
    """The cotangents before a step: of the active carries, of the slices of the active xs, and of
    the active consts, those of later steps included."""

    carry: Values
    x: Values
    consts: Values


def compiled_step(
    loop: Loop, operands: Operands, activity: Activity | None = None, *, taped: bool = False
) -> "CompiledStep":
    """The step of a loop with operands like these, which may have a single slice of the xs. A step
    without activity has no pullback; one that is `taped` can keep its residuals.

    An earlier one is used again if it is the same program, so that an optimization compiles it
    once, even if it makes another function `f` for each gradient.
    """
    placed = tuple(map(sharding_of, (*operands.consts, *operands.carry)))
    types = tuple(jax.typeof(x) for part in operands for x in part)
    counts = loop.num_consts, loop.num_carry, len(operands.xs)
    key = (program_key(loop.jaxpr), counts, placed, types, activity, taped)
    with _lock:
        step = _known.pop(key, None)
    if step is None:
        step = CompiledStep(loop, operands, activity, taped=taped)
    with _lock:
        _known[key] = step
        if len(_known) > MOST_KNOWN:
            _known.pop(next(iter(_known)))
    return step


MOST_KNOWN = 16
"""The compiled steps that are kept, those that were used last."""

_known: dict[Any, "CompiledStep"] = {}
_lock = Lock()


class CompiledStep:
    """A loop's step. Each program is compiled when it is first called.

    The carry keeps the sharding of the initial carry in each step. Cotangents of consts are added
    up in place.
    """

    described: str | None = None

    def __init__(
        self, loop: Loop, operands: Operands, activity: Activity | None, *, taped: bool
    ) -> None:
        self._loop, self._activity = loop, activity
        carry = list(map(sharding_of, operands.carry))
        self.forward = jax.jit(loop.step, out_shardings=(carry, None))
        if activity is None:
            return
        consts = list(map(sharding_of, pick(operands.consts, activity.consts)))
        shardings: Any = Pulled(pick(carry, activity.carry), None, consts)  # pyright: ignore[reportArgumentType]
        pullback = partial(jax.jit, donate_argnums=3, out_shardings=shardings)
        self.pull = pullback(self._pull_step)
        if taped:
            self._taping = _Taping.of(loop, activity, operands, carry)
            self.pull_taped = pullback(self._pull_residuals)
        self._check(operands)

    @property
    def activity(self) -> Activity:
        """What is differentiated."""
        assert self._activity is not None
        return self._activity

    def _check(self, operands: Operands) -> None:
        """Trace the pullback, so that a step which has none is an error before the loop runs."""

        def pull(inputs: Operands) -> Pulled:
            carry, y = self._loop.step(*inputs)
            active = self.activity
            pairs = (carry, active.carry), (y, active.ys), (inputs.consts, active.consts)
            return self._pull_step(inputs, *(zero_cotangents(*pair) for pair in pairs))

        jax.eval_shape(pull, operands._replace(xs=read(operands.xs, 0)))

    def tape(self, inputs: Operands) -> tuple[Values, Values, Values]:
        """The next carry, a y, and the residuals of the step. Residuals that are inputs of the step
        are not computed again: they are these very arrays."""
        computed = self._taping.run(inputs)
        known = [*inputs.consts, *inputs.carry, *inputs.xs, *computed]
        results = computed[: self._taping.traced.num_results]
        return *self._loop.results(results), [known[i] for i in self._taping.residuals]

    def _pull_step(
        self, inputs: Operands, ct_carry: Values, ct_y: Values, ct_consts: Values
    ) -> Pulled:
        cotangents = Cotangents(ct_carry, ct_y)
        pulled = pull_back_step(self._loop.step, self.activity, inputs, cotangents)
        return Pulled(pulled.carry, pulled.xs, add(ct_consts, pulled.consts))

    def _pull_residuals(
        self, residuals: Values, ct_carry: Values, ct_y: Values, ct_consts: Values
    ) -> Pulled:
        pulled = pull_back(self._taping.traced.linearized, residuals, Cotangents(ct_carry, ct_y))
        return Pulled(pulled.carry, pulled.xs, add(ct_consts, pulled.consts))


class _Taping(NamedTuple):
    """The step with its residuals. `run` computes the results, and the residuals that are neither
    inputs nor results. `residuals` tells where each of them is among the inputs and these."""

    traced: TracedStep
    run: Callable[[Operands], Values]
    residuals: list[int]

    @classmethod
    def of(
        cls, loop: Loop, activity: Activity, operands: Operands, carry_shardings: list[Any]
    ) -> "_Taping":
        traced = traced_step(loop, activity, operands)
        flat = iter(range(sum(map(len, operands))))
        consts, carry, xs = ([next(flat) for _ in part] for part in operands)
        inputs = [*consts, *consts, *carry, *carry, *xs]
        found = results_in(traced.closed)
        computed = [
            number
            for number, result in enumerate(found)
            if number < traced.num_results or (result.input is None and result.same_as == number)
        ]
        at = {number: len(consts + carry + xs) + i for i, number in enumerate(computed)}
        residuals = [
            at[result.same_as] if result.input is None else inputs[result.input]
            for result in found[traced.num_results :]
        ]

        def run(inputs: Operands) -> Values:
            consts, carry, x = inputs
            results = call_jaxpr(traced.closed)(*consts, *consts, *carry, *carry, *x)
            return [results[number] for number in computed]

        shardings = [*carry_shardings, *[None] * (len(computed) - len(carry))]
        return cls(traced, jax.jit(run, out_shardings=shardings), residuals)
