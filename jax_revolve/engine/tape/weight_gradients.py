"""Cotangents of weights, summed over several steps by one matrix product.

Each step contributes a_i^T b_i to a weight's gradient, the product of an input and a cotangent. One
by one, these products are thin, and each reads and writes a whole weight. Over a piece of a block,
they are one large product:

    for i in reversed(piece): keep a_i and b_i             # the factors
    ct_weight += concatenate(a)^T @ concatenate(b)         # sum_i a_i^T b_i contracts over i, too

So we trace the pullback of a step. Where a weight's cotangent is a product of two arrays that vary
from step to step, perhaps followed by linear operations that do not vary, we keep both factors. We
do this for large weights whose factors take at most half as many bytes as the weight; otherwise the
products are not thin.
"""

from collections.abc import Sequence
from typing import Any

from jax_revolve._compat.jaxprs import ClosedJaxpr, is_literal
from jax_revolve._compat.values import AbstractValue, bytes_of, pick
from jax_revolve.jaxprs.parts import made_by_effects, part_of, varying_variables, with_outputs
from jax_revolve.schedule.cost import STEPS_IN_A_PRODUCT, piece
from jax_revolve.step.cpu import sum_of_products
from jax_revolve.step.operations import having

Variable = Any
"""A variable of a jaxpr."""

LEAST_WEIGHT = 2**17
"""In bytes. Smaller weights stay in the cache, where adding to them costs less than keeping the
factors."""

MOST_KEPT = 0.5
"""The most bytes of factors for each step, as a share of the weight's bytes."""

_SUMS, _LINEAR = having("sum"), having("linear")
"""Of the operands of a linear operation, only the one in which it is linear may vary."""


class WeightGradients:
    """The cotangents of consts that are products over several steps."""

    def __init__(
        self,
        pullback: ClosedJaxpr,
        varies: Sequence[bool],
        stored: Sequence[int | None],
        num_consts: int,
    ) -> None:
        """`varies` flags the inputs of a step's `pullback` that vary from step to step, and
        `stored` is the index of each input's buffer, or `None`. The first `num_consts` outputs are
        the cotangents of consts."""
        jaxpr = pullback.jaxpr
        self._pullback = pullback
        self._consts, self._others = jaxpr.outvars[:num_consts], jaxpr.outvars[num_consts:]
        inputs = [*pick(jaxpr.invars, varies), *made_by_effects(jaxpr)]
        self._varying = varying_variables(jaxpr, inputs)
        buffers = zip(jaxpr.invars, stored, strict=True)
        self._stored = {v: buffer for v, buffer in buffers if buffer is not None}
        self._factors = self._find_factors()
        self._kept: list[Variable] = []
        self.deferred = tuple(map(self._defer, self._consts))
        """Which cotangents of consts wait for the end of a piece."""

    @property
    def types(self) -> list[AbstractValue]:
        return [v.aval for v in self._kept]

    @property
    def weights(self) -> list[AbstractValue]:
        """The types of the deferred cotangents."""
        return [v.aval for v in pick(self._consts, self.deferred)]

    def piece(self, block_size: int) -> int:
        """The number of steps whose weight gradients are one product."""
        return piece(block_size, STEPS_IN_A_PRODUCT) if self._kept else block_size

    def of_step(
        self, inputs: Sequence[Any], deferred: Sequence[bool]
    ) -> tuple[list[Any], list[Any]]:
        """The cotangents that are not deferred, and the arrays to keep if any is."""
        now = [*pick(self._consts, [not d for d in deferred]), *self._others]
        kept = self._kept if any(deferred) else []
        results = with_outputs(self._pullback, [*now, *kept])(inputs)
        return results[: len(now)], results[len(now) :]

    def of_piece(self, stored: list[Any], kept: list[Any], fixed: list[Any]) -> list[Any]:
        """The deferred cotangents, from the tape and the factors of a piece, and the inputs that do
        not vary. Factors of entries without a step must be zero."""
        jaxpr: Any = self._pullback.jaxpr
        cotangents = pick(self._consts, self.deferred)
        values = {v: stored[i] for v, i in self._stored.items()}
        values.update(zip(self._kept, kept, strict=True))
        made = {
            eqn.outvars[0]: sum_of_products(eqn, *map(values.__getitem__, eqn.invars))
            for eqn in jaxpr.eqns
            if eqn.primitive.name == "dot_general"
            and eqn.outvars[0] in self._factors
            and values.keys() >= {*eqn.invars}
        }
        inputs = [v for v in jaxpr.invars if v not in self._varying]
        return part_of(self._pullback, [*made, *inputs], cotangents)([*made.values(), *fixed])

    def _defer(self, cotangent: Variable) -> bool:
        """Whether to defer a cotangent to the end of a piece. If so, its factors are kept."""
        factors = None if is_literal(cotangent) else self._factors.get(cotangent)
        if factors is None:
            return False
        new = [v for v in factors if v not in self._stored and v not in self._kept]
        weight = bytes_of([cotangent.aval])
        if weight < LEAST_WEIGHT or bytes_of(v.aval for v in new) > MOST_KEPT * weight:
            return False
        self._kept += new
        return True

    def _find_factors(self) -> dict[Variable, list[Variable]]:
        """The variables that are sums of products, each with the operands of its products. One
        pass, because the number of paths from a cotangent to its products can be exponential."""
        found: dict[Variable, list[Variable]] = {}
        eqns: list[Any] = self._pullback.jaxpr.eqns
        for eqn in eqns:
            name = eqn.primitive.name
            varying = [not is_literal(v) and v in self._varying for v in eqn.invars]
            if name == "dot_general":
                is_kept = any(operand not in self._stored for operand in eqn.invars)
                if all(varying) and is_kept:
                    found[eqn.outvars[0]] = list(eqn.invars)
                continue
            is_sum = name in _SUMS and all(varying)
            is_linear = name in _LINEAR and sum(varying) == 1 and (varying[0] or name == "mul")
            if name == "pad":  # with anything but zeros it adds to each product
                is_linear &= is_literal(eqn.invars[1]) and not eqn.invars[1].val
            if is_sum or is_linear:
                operands_of = [found.get(v) for v in pick(eqn.invars, varying)]
                if None not in operands_of:
                    factors = dict.fromkeys(x for each in operands_of if each for x in each)
                    found[eqn.outvars[0]] = list(factors)
        return found
