"""The step as compiled programs: forward, pulled back, and taped."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax

from jax_revolve._compat import call_jaxpr, results_in
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

Values = list[Any]


class Pulled(NamedTuple):
    """The cotangents before a step: of the active carries, of the slices of the active xs, and of
    the active consts, those of later steps included."""

    carry: Values
    x: Values
    consts: Values


class CompiledStep:
    """A loop's step. Each program is compiled when it is first called.

    The carry keeps the sharding of the initial carry in each step. Cotangents of consts are added
    up in place.
    """

    def __init__(self, loop: Loop, operands: Operands, activity: Activity | None = None) -> None:
        """The operands may have a single slice of the xs. A step without activity has no
        pullback."""
        self._loop, self._operands, self._activity = loop, operands, activity
        carry = list(map(sharding_of, operands.carry))
        self._forward = jax.jit(loop.step, out_shardings=(carry, None))
        if activity is not None:
            self._pull = self._differentiated(self._pull_step)
            self._pull_taped = self._differentiated(self._pull_residuals)

    @property
    def activity(self) -> Activity:
        """What is differentiated."""
        assert self._activity is not None
        return self._activity

    def check(self) -> None:
        """Trace the pullback, so that a step which has none is an error before the loop runs."""

        def pull(inputs: Operands) -> Pulled:
            carry, y = self._loop.step(*inputs)
            active = self.activity
            pairs = (carry, active.carry), (y, active.ys), (inputs.consts, active.consts)
            return self._pull_step(inputs, *(zero_cotangents(*pair) for pair in pairs))

        jax.eval_shape(pull, self._operands._replace(xs=read(self._operands.xs, 0)))

    def forward(self, consts: Values, carry: Values, x: Values) -> tuple[Values, Values]:
        """The next carry, and a y."""
        return self._forward(consts, carry, x)

    def pull(self, inputs: Operands, ct_carry: Values, ct_y: Values, ct_consts: Values) -> Pulled:
        """One step, linearized and pulled back in one program."""
        return self._pull(inputs, ct_carry, ct_y, ct_consts)

    def tape(self, inputs: Operands) -> tuple[Values, Values, Values]:
        """The next carry, a y, and the residuals of the step. Residuals that are inputs of the step
        are not computed again: they are these very arrays."""
        traced, sources, taped = self._taping
        computed = taped(inputs)
        flat = [*inputs.consts, *inputs.carry, *inputs.xs]
        kept = [computed[s.at] if s.input is None else flat[s.input] for s in sources]
        return *self._loop.results(computed[: traced.num_results]), kept

    def pull_taped(
        self, residuals: Values, ct_carry: Values, ct_y: Values, ct_consts: Values
    ) -> Pulled:
        """The pullback of a taped step."""
        return self._pull_taped(residuals, ct_carry, ct_y, ct_consts)

    def _differentiated(self, fun: Callable[..., Pulled]) -> Callable[..., Pulled]:
        carry = map(sharding_of, pick(self._operands.carry, self.activity.carry))
        consts = map(sharding_of, pick(self._operands.consts, self.activity.consts))
        shardings: Any = Pulled([*carry], None, [*consts])  # pyright: ignore[reportArgumentType]
        return jax.jit(fun, donate_argnums=3, out_shardings=shardings)

    def _pull_step(
        self, inputs: Operands, ct_carry: Values, ct_y: Values, ct_consts: Values
    ) -> Pulled:
        cotangents = Cotangents(ct_carry, ct_y)
        pulled = pull_back_step(self._loop.step, self.activity, inputs, cotangents)
        return Pulled(pulled.carry, pulled.xs, add(ct_consts, pulled.consts))

    def _pull_residuals(
        self, residuals: Values, ct_carry: Values, ct_y: Values, ct_consts: Values
    ) -> Pulled:
        pulled = pull_back(self._taping[0].linearized, residuals, Cotangents(ct_carry, ct_y))
        return Pulled(pulled.carry, pulled.xs, add(ct_consts, pulled.consts))

    @cached_property
    def _taping(self) -> tuple[TracedStep, list["_Source"], Callable[..., Values]]:
        """The step with its residuals, where each of those comes from, and the program that
        computes the results and the residuals that are not inputs."""
        traced = traced_step(self._loop, self.activity, self._operands)
        num_consts, num_carry = self._loop.num_consts, self._loop.num_carry
        shared = [*range(num_consts), *range(num_consts + num_carry)]
        first = num_consts + num_carry
        of_input = [*shared, *range(num_consts, first + len(self._operands.xs))]
        outputs = list(range(traced.num_results))
        at = {number: number for number in outputs}
        sources: list[_Source] = []
        for number, result in enumerate(results_in(traced.closed)):
            if number < traced.num_results:
                continue
            if result.input is not None:
                sources.append(_Source(of_input[result.input], -1))
                continue
            if result.same_as not in at:
                at[result.same_as] = len(outputs)
                outputs.append(number)
            sources.append(_Source(None, at[result.same_as]))

        def taped(inputs: Operands) -> Values:
            consts, carry, x = inputs
            results = call_jaxpr(traced.closed)(*consts, *consts, *carry, *carry, *x)
            return [results[number] for number in outputs]

        carry = list(map(sharding_of, self._operands.carry))
        shardings = [*carry, *[None] * (len(outputs) - num_carry)]
        return traced, sources, jax.jit(taped, out_shardings=shardings)


class _Source(NamedTuple):
    """Where a residual comes from: an input of the step, or what the program computes."""

    input: int | None
    at: int


def sharding_of(value: Any) -> Any:
    """The sharding of an array over several devices; `None` for others, which JAX places."""
    if isinstance(value, jax.Array) and len(value.sharding.device_set) > 1:
        return value.sharding
    return None
