"""What is known of a taped step before it runs: what is kept of it, and how that is pulled back."""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf
from typing import Any

import jax

from jax_revolve._compat.jaxprs import ClosedJaxpr, is_literal, part_of, with_outputs
from jax_revolve._compat.values import AbstractValue, bytes_of
from jax_revolve.engine.tape.cut import Cut, best_cut, cut_at, uncut
from jax_revolve.engine.tape.weight_gradients import WeightGradients
from jax_revolve.profiles.in_force import profile_in_force, profile_of_platform
from jax_revolve.schedule.cost import Sizes
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.cpu import with_reads_first
from jax_revolve.step.loop import Loop, Operands, pick
from jax_revolve.step.once import once
from jax_revolve.step.pullback import Cotangents, pull_back
from jax_revolve.step.traced import TracedStep, traced_step
from jax_revolve.step.work import work_of


def taped_step(loop: Loop, activity: Activity, operands: Operands) -> "TapedStep":
    """The taped step of a loop with these operands, found once."""
    profile = profile_of_platform()

    def find() -> TapedStep:
        step = traced_step(loop, activity, operands)
        return TapedStep(step, best_cut(step, profile), activity)

    return once(loop.bare, ("taped step", activity, profile, operands.types), find)


def sizes_of(loop: Loop, activity: Activity, restart: Mask, operands: Operands) -> Sizes:
    """The sizes that a plan is chosen by, found by tracing one step."""
    profile, taped = profile_in_force(), taped_step(loop, activity, operands)
    weights, step, cut = taped.weight_gradients, taped.step, taped.cut
    carry, by_jax = list(map(jax.typeof, operands.carry)), uncut(step)
    computed = [] if cut.is_elementwise else set(by_jax).difference(cut.kept)  # not merged by XLA
    again = bytes_of(v.aval for v in computed)
    start = set(step.carry).difference(by_jax)  # it is there anyway
    return Sizes(
        checkpoint=bytes_of(pick(carry, restart)),
        residuals=cut.bytes,
        alone=bytes_of(v.aval for v in cut.kept if v not in start) + again,
        carry=bytes_of(carry),
        weights=bytes_of(weights.weights),
        work=work_of(loop.jaxpr, profile),
        again=again,
        again_work=cut_at(step, cut.kept, profile).work,
        uncut=bytes_of(v.aval for v in by_jax),
        profile=profile,
        factors=bytes_of(weights.types),
        arrays=len(cut.kept),
    )


class TapedStep:
    """A step, and the cut of its residuals: see `cut`."""

    def __init__(self, step: TracedStep, cut: Cut, activity: Activity) -> None:
        self.step, self.cut, self._activity = step, cut, activity
        varying = step.varying
        self._varies = [not is_literal(v) and v in varying for v in step.residuals]

    @property
    def types(self) -> list[AbstractValue]:
        """The types of what is kept of a step."""
        return [v.aval for v in self.cut.kept]

    # Running

    def run(self, shared: Sequence[Any], carry: list[Any], x: list[Any]) -> list[Any]:
        """The results of a step, and what is kept of it."""
        run = with_outputs(self.step.closed, [*self.step.results, *self.cut.kept])
        return run([*shared, *carry, *x])

    def same(self, shared: Sequence[Any]) -> list[Any]:
        """The values of `cut.same`. They depend on neither carry nor x."""
        others = [v.aval for v in [*self.step.carry, *self.step.x]]
        return with_outputs(self.step.closed, self.cut.same, effects=False)([*shared, *others])

    @cached_property
    def residuals(self) -> Callable[[Sequence[Any]], list[Any]]:
        """The residuals, from what all steps share, what is kept, the x, and `same`."""
        inputs = [*self.step.shared, *self.cut.kept, *self.step.x, *self.cut.same]
        return part_of(self.step.closed, inputs, self.step.residuals)

    def fixed(self, shared: Sequence[Any], same: Sequence[Any]) -> list[Any]:
        """The residuals that are the same for every step."""
        step, is_fixed = self.step, [not varies for varies in self._varies]
        inputs = [*step.shared, *self.cut.same]
        return part_of(step.closed, inputs, pick(step.residuals, is_fixed))([*shared, *same])

    # Pulling back

    @property
    def cotangent_types(self) -> list[AbstractValue]:
        """Of the active results."""
        return self.step.linearized.types

    @cached_property
    def is_transposable(self) -> bool:
        """Whether JAX transposes the step. If not, the reverse sweep raises JAX's error, which is
        not kept here."""
        try:
            _ = self._pullback
        except (ValueError, NotImplementedError):  # a while loop; a primitive without the rule
            return False
        return True

    @cached_property
    def weight_gradients(self) -> WeightGradients:
        """For steps in a block."""
        return self._weight_gradients()

    @cached_property
    def added_at_once(self) -> WeightGradients:
        """For steps that are taped alone: cotangents of weights are added up in each step."""
        return self._weight_gradients(least_weight=inf)

    def _weight_gradients(self, **limits: Any) -> WeightGradients:
        cts, stored = len(self.cotangent_types), {v: i for i, v in enumerate(self.cut.kept)}
        buffers = [None if is_literal(v) else stored.get(v) for v in self.step.residuals]
        return WeightGradients(
            self._pullback,
            [*self._varies, *[True] * cts],
            [*buffers, *[None] * cts],
            sum(self._activity.consts),
            **limits,
        )

    def of_operands(self, flat: list[Any], num_consts: int) -> Operands:
        """What a pullback returns, of so many consts, of the carry and of the xs."""
        first_x = num_consts + sum(self._activity.carry)
        return Operands(flat[:num_consts], flat[num_consts:first_x], flat[first_x:])

    @cached_property
    def _pullback(self) -> ClosedJaxpr:
        """Of residuals and cotangents, to cotangents."""
        num_carry = sum(self._activity.carry)

        def pullback(residuals: list[Any], cts: list[Any]) -> list[Any]:
            ct = Cotangents(cts[:num_carry], cts[num_carry:])
            return [x for part in pull_back(self.step.linearized, residuals, ct) for x in part]

        residuals = [v.aval for v in self.step.residuals]
        return with_reads_first(jax.make_jaxpr(pullback)(residuals, self.cotangent_types))
