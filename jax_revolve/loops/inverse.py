"""The step of a scan and its inverse, traced together."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from math import isinf
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jax_revolve._compat.jaxprs import ClosedJaxpr, source_of_function
from jax_revolve._compat.loops import LoopEquation
from jax_revolve._compat.values import as_array, vary, varying_axes
from jax_revolve.autodiff.rules import run_loop
from jax_revolve.loops.options import Options
from jax_revolve.schedule.arguments import check_number, mistyped
from jax_revolve.step.loop import Trust, is_inexact


@dataclass(eq=False)
class Reversible:
    """A step with its inverse. `lax` traces both as one step, so they share what they close over:
    first `f`; a mark on each of its results, so that lax passes none of them on; then the inverse,
    from the same carry and the marked ys."""

    f: Callable[..., Any]
    inverse: Callable[..., Any]
    tolerance: float | None
    throw: bool
    leaves: tuple[str, ...] = ()
    num_ys: int = field(default=0, init=False)

    @classmethod
    def of(cls, f: Any, inverse: Any, inverse_tol: Any, throw: bool) -> "Reversible | None":
        """Checks the arguments. `None` without an inverse."""
        if inverse is None:
            if inverse_tol is not None or throw:
                raise ValueError(
                    "inverse_tol must be None and throw False where no inverse is given, but they "
                    f"are {inverse_tol!r} and {throw!r}."
                )
            return None
        if not callable(inverse):
            raise mistyped("inverse", inverse, "a function of carry, x and y, or None")
        allowed = "a number >= 0, math.inf included, or None"
        if inverse_tol is not None and not (isinstance(inverse_tol, float) and isinf(inverse_tol)):
            inverse_tol = check_number("inverse_tol", inverse_tol, least=0, allowed=allowed)
        return cls(f, inverse, inverse_tol, throw)

    @property
    def step(self) -> Callable[..., Any]:
        """Both for a scan, which returns the carries before as further ys."""

        def run(carry: Any, x: Any) -> Any:
            results = self.f(carry, x)
            if not (isinstance(results, tuple) and len(results) == 2):
                return results  # for the error of lax
            after, y = _marked(results)
            self.num_ys = len(jax.tree.leaves(y))
            return after, (y, self._before(carry, x, y))

        return wraps(self.f)(run)

    @property
    def body(self) -> Callable[..., Any]:
        """Both for a while loop, which carries the carry before as well."""

        def run(both: Any) -> Any:
            return _marked(self.f(both[0])), self._before(both[0])

        return wraps(self.f)(run)

    def _before(self, carry: Any, *inputs: Any) -> Any:
        before = self.inverse(carry, *inputs)
        paths, structure = jax.tree.flatten_with_path(carry)
        self.leaves = tuple(f"carry{jax.tree_util.keystr(path)}" for path, _ in paths)
        if jax.tree.structure(before) != structure:
            raise TypeError(
                f"inverse must return a carry of the structure {structure}, but returns "
                f"{jax.tree.structure(before)}."
            )

        def like(leaf: Any, before: Any) -> Any:
            return vary(as_array(before), varying_axes(jax.typeof(leaf)))

        return jax.tree.map(like, carry, before)

    def run(self, asked: Options, equation: LoopEquation, operands: Any, *bound: Any) -> Any:
        """The results of the loop of `f` alone, which its inverse walks back."""
        closed, num_carry = equation.jaxpr, len(self.leaves)
        added = equation.num_carry - num_carry  # to the carry of a while loop
        outputs, count = closed.jaxpr.outvars, num_carry + self.num_ys
        marks = {v: eqn for eqn in closed.eqns for v in eqn.outvars if v in outputs[:count]}
        expected = 0 if equation.condition is None else num_carry
        if equation.obstacle or added != expected or len(marks) != count:
            raise NotImplementedError(
                "inverse must be None for a step that uses mutable references or values that are "
                "not arrays. Carry arrays instead."
            )
        self._check(equation.output_types[:num_carry], [v.aval for v in outputs[count:]])
        is_mark = [any(eqn is mark for mark in marks.values()) for eqn in closed.eqns]
        end = max((i for i, mark in enumerate(is_mark, 1) if mark), default=0)
        inputs, condition = closed.jaxpr.invars, equation.condition
        if condition is not None:
            inputs, operands = inputs[:-added], operands[:-added]
            holds = condition.jaxpr.replace(invars=condition.jaxpr.invars[:-added])
            condition = ClosedJaxpr(holds, condition.consts)
        step = closed.jaxpr.replace(
            invars=inputs,
            eqns=[eqn for eqn, mark in zip(closed.eqns[:end], is_mark, strict=False) if not mark],
            outvars=[marks[v].invars[0] for v in outputs[:count]],
        )
        inverse = closed.jaxpr.replace(
            eqns=closed.eqns[end:],
            invars=[*inputs, *outputs[num_carry:count]],
            outvars=outputs[count:],
        )
        step, inverse = (ClosedJaxpr(jaxpr, closed.consts) for jaxpr in (step, inverse))
        bare = {"jaxpr": step, "condition": condition, "num_carry": num_carry}
        equation = equation._replace(**bare, output_types=equation.output_types[:count])
        source, examples = source_of_function(closed), (0,) * num_carry
        trust = Trust(self.tolerance, self.throw, source, self.leaves, examples)
        loop = asked.loop(equation, *bound)._replace(inverse=inverse, trust=trust)
        return [*run_loop(loop, operands), *[None] * num_carry]

    def _check(self, carry: Any, before: Any) -> None:
        for name, own, found in zip(self.leaves, carry, before, strict=True):
            if (own.shape, own.dtype) != (found.shape, found.dtype):
                raise TypeError(
                    f"inverse must return a carry of the types of init, but {name} is "
                    f"{found.str_short()} rather than {own.str_short()}."
                )
            is_half = is_inexact(own) and jnp.finfo(own.dtype).bits <= 16
            if is_half and self.tolerance is None:
                raise ValueError(
                    f"inverse_tol must be given where the carry has half precision, as {name} has, "
                    f"of dtype {own.dtype}: the square root of its epsilon, "
                    f"{float(jnp.finfo(own.dtype).eps) ** 0.5:.2g}, would show nothing."
                )


def _marked(results: Any) -> Any:
    """The results of a step, none of which lax passes on now."""
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, _MARK), results)


_MARK = "jax_revolve: a result of the step"
