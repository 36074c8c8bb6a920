"""The step of a scan and its inverse, traced together; and how far steps drift."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from types import FunctionType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jax_revolve._compat.interpreters import filtered_traceback
from jax_revolve._compat.jaxprs import ClosedJaxpr, source_of_function
from jax_revolve._compat.values import as_array, vary, varying_axes
from jax_revolve.autodiff.loop import run_loop
from jax_revolve.engine.codecs import rounded
from jax_revolve.engine.drift import drift_of, scale_of, tolerance_of
from jax_revolve.loops.options import LoopOptions
from jax_revolve.schedule.arguments import check_drift_tol, check_integer, mistyped
from jax_revolve.schedule.selection import equal_blocks, walked_blocks
from jax_revolve.schedule.storage import Compressed
from jax_revolve.step.loop import Loop, Trust, is_inexact, once


@dataclass(frozen=True)
class Inverse:
    """The inverse of a step, and how it is checked: `inverse=` of a loop also takes the function
    alone.

    **Arguments:**

    - `fun`: a function that returns the carry before a step, as the loop's `inverse=`.
    - `drift_tol`: how far the carry at the start of a block may be off once it is walked back,
        relative to the largest entry of the leaf at either end: a number >= 0. Beyond it, all
        cotangents of the example are NaN; in a gradient of `jax.vmap`, of all examples.
        Integers must be exact. `None` is the square root of the dtype's epsilon; `math.inf` turns
        the check off. [`jax_revolve.drift`][] measures what a loop needs.
    - `throw`: whether to raise an error instead, at run time, which names the leaf and the step.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not as above.

    !!! Example

        ```python
        import jax
        from jax_revolve import Inverse, checkpointed_scan

        def loss(x):
            step = lambda x, _: (1.01 * x, None)
            inverse = Inverse(lambda x, *_: x / 1.01, drift_tol=1e-5, throw=True)
            return checkpointed_scan(step, x, length=99, inverse=inverse)[0]

        jax.grad(loss)(1.0)
        ```
    """

    fun: Callable[..., Any]
    drift_tol: float | None = None
    throw: bool = False

    def __post_init__(self) -> None:
        if not callable(self.fun):
            raise mistyped("fun", self.fun, "a function of carry, x and y")
        check_drift_tol(self.drift_tol)

    @classmethod
    def of(cls, given: Any) -> "Inverse | None":
        """What a loop was given."""
        if given is None or isinstance(given, cls):
            return given
        if not callable(given):
            allowed = "a function of carry, x and y, a jax_revolve.Inverse, or None"
            raise mistyped("inverse", given, allowed)
        return cls(given)


@dataclass(eq=False)
class Reversible:
    """A step with its inverse, and the condition of a while loop, which counts its steps. `lax`
    traces both as one step, so that they share the values they close over: first `f`, then a mark
    on each of its results, so that lax forwards none of them, and then the inverse, from the same
    carry and the marked ys."""

    f: Callable[..., Any]
    inverse: Callable[..., Any]
    tolerance: float | None
    throw: bool
    condition: Callable[[Any], Any] | None = None

    @classmethod
    def of(cls, f: Any, inverse: Any, condition: Any = None) -> "Reversible | None":
        """`None` without an inverse."""
        given = Inverse.of(inverse)
        if given is None:
            return None
        return cls(f, given.fun, given.drift_tol, given.throw, condition)._kept()

    def _kept(self) -> "Reversible":
        """This object, or an earlier one for the same functions, which JAX has traced and compiled.
        The step itself keeps it, so that both are forgotten together."""
        if isinstance(self.f, FunctionType):
            earlier = vars(self.f).get(_KEPT)  # `functools.wraps` may have copied another step's
            if earlier is not None and vars(earlier).items() >= vars(self).items():
                return earlier
            vars(self.f)[_KEPT] = self
        return self

    @cached_property
    def step(self) -> Callable[..., Any]:
        """Step and inverse for a scan, which returns the carries before the step as further ys."""

        def run(carry: Any, x: Any) -> Any:
            results = self.f(carry, x)
            if not (isinstance(results, tuple) and len(results) == 2):
                return results  # for the error of lax
            after, y = _marked(results)
            return after, (y, self._before(carry, self.inverse(carry, x, y)))

        return self._named(run)

    @cached_property
    def body(self) -> Callable[..., Any]:
        """Step and inverse for a while loop, which also carries the carry before the step."""

        def run(both: Any) -> Any:
            count, value = carry = both[0]
            after = _marked((count + 1, self.f(value)))
            return after, self._before(carry, (count - 1, self.inverse(value)))

        return self._named(run)

    @cached_property
    def goes_on(self) -> Callable[..., Any]:
        return lambda both: self.condition is not None and self.condition(both[0][1])

    def _named(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The function, named after `f` in errors and reports."""
        return wraps(getattr(self.f, "func", self.f))(run)  # JAX does not look into a partial

    def _before(self, carry: Any, before: Any) -> Any:
        structure = jax.tree.structure(carry)
        if jax.tree.structure(before) != structure:
            raise TypeError(
                f"inverse must return a carry of the structure {structure}, but returns "
                f"{jax.tree.structure(before)}."
            )

        def like(leaf: Any, before: Any) -> Any:
            return vary(as_array(before), varying_axes(jax.typeof(leaf)))

        return jax.tree.map(like, carry, before)

    def run(
        self, options: LoopOptions, carry: Any, equation: Loop, operands: Any, *bound: Any
    ) -> Any:
        """Run the loop of `f` alone, which the inverse walks back."""
        paths, _ = jax.tree.flatten_with_path(carry)
        leaves = tuple(f"carry{jax.tree_util.keystr(path)}" for path, _ in paths)
        closed, num_carry = equation.jaxpr, len(leaves)
        added = equation.num_carry - num_carry  # to the carry of a while loop
        count = len(closed.out_avals) - num_carry
        is_while = equation.condition is not None
        made: dict[Any, int] = {v: i for i, eqn in enumerate(closed.eqns) for v in eqn.outvars}
        marks = [made.get(v, -1) for v in closed.jaxpr.outvars[:count]]
        # JAX_REMAT3=1 names values by another primitive, whose parameter is an object.
        are_marks = all(i >= 0 and _MARK in str(closed.eqns[i].params) for i in marks)
        is_as_made = added == num_carry * is_while and are_marks
        if equation.obstacle or not is_as_made:
            raise NotImplementedError(
                "inverse must be None for a step that uses mutable references or values that are "
                "not arrays. Carry arrays instead."
            )
        self._check(leaves, equation.output_types[:num_carry], closed.out_avals[count:])
        # The same objects each time, so that they are compiled once outside `jax.jit`.
        halves = once(equation, ("halves",), lambda: _halves(equation, marks, num_carry, added))
        equation = equation._replace(num_carry=num_carry, **halves)
        trust = Trust(
            self.tolerance, self.throw, source_of_function(closed), leaves, (0,) * num_carry
        )
        loop = options.loop(equation, *bound)._replace(trust=trust)
        inputs = operands[: len(operands) - added]
        return [*run_loop(loop, inputs, options.listener), *[None] * num_carry]

    def _check(self, leaves: Any, carry: Any, before: Any) -> None:
        for name, own, found in zip(leaves, carry, before, strict=True):
            if (own.shape, own.dtype) != (found.shape, found.dtype):
                raise TypeError(
                    f"inverse must return a carry of the types of init, but {name} is "
                    f"{found.str_short()} rather than {own.str_short()}."
                )
            is_half = is_inexact(own) and jnp.finfo(own.dtype).bits <= 16
            if is_half and self.tolerance is None:
                raise ValueError(
                    "inverse must be a jax_revolve.Inverse with a drift_tol where the carry has "
                    f"half precision, but its drift_tol is None and {name} has dtype {own.dtype}, "
                    "the root of whose epsilon would show nothing."
                )


def _halves(equation: Loop, marks: list[int], num_carry: int, added: int) -> dict[str, Any]:
    """The parts of the loop of `f` alone, and the inverse, from the loop of both."""
    closed, condition = equation.jaxpr, equation.condition
    outputs, end = closed.jaxpr.outvars, max(marks, default=-1) + 1
    count = len(outputs) - num_carry
    inputs = closed.jaxpr.invars[: len(closed.jaxpr.invars) - added]
    if condition is not None:
        holds = condition.jaxpr.replace(invars=condition.jaxpr.invars[:-added])
        condition = ClosedJaxpr(holds, condition.consts)
    step, inverse = (
        ClosedJaxpr(closed.jaxpr.replace(invars=of, eqns=eqns, outvars=results), closed.consts)
        for of, eqns, results in (
            (inputs, closed.eqns[:end], [closed.eqns[mark].invars[0] for mark in marks]),
            ([*inputs, *outputs[num_carry:count]], closed.eqns[end:], outputs[count:]),
        )
    )
    types = equation.output_types[:count]
    return {"jaxpr": step, "condition": condition, "inverse": inverse, "output_types": types}


class Drift(NamedTuple):
    """How far steps drift: what [`jax_revolve.drift`][] returns.

    - `drift`: for each block, the largest difference of a leaf of the carry, relative to the leaf's
        largest entry: at the block's start, walked back from its end; or at its end, recomputed
        from the compressed carry at its start.
    - `largest_block`: the most steps, up to `block_size`, over which every block stays within the
        tolerance.
    """

    drift: jax.Array
    largest_block: jax.Array


@filtered_traceback
def drift(
    f: Callable[[Any, Any], tuple[Any, Any]],
    how: Callable[[Any, Any, Any], Any] | Inverse | Compressed,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    block_size: int | None = None,
) -> Drift:
    """How far steps drift from the exact carries in each block of a loop, where they are walked
    back by an inverse, or recomputed from a compressed checkpoint.

    It runs the loop twice, and holds a carry for each step of one block.

    **Arguments:**

    - `f`, `init`, `xs`, `length`, `reverse`: as `jax.lax.scan`.
    - `how`: a function or a [`jax_revolve.Inverse`][], as `inverse=` of
        [`jax_revolve.checkpointed_scan`][]; or a [`jax_revolve.Compressed`][].
    - `block_size`: as in that loop, with an inverse. Steps at the end that do not fill a block are
        left out.

    **Returns:**

    A [`jax_revolve.typing.Drift`][].

    **Raises:**

    What `jax.lax.scan` raises, and `TypeError` or `ValueError` if `how` or `block_size` is not as
    above.

    !!! Example

        ```python
        import jax.numpy as jnp
        from jax_revolve import Compressed, drift

        def step(x, _):
            return 0.9 * x, None  # what is lost is amplified on the way back

        found = drift(step, lambda x, *_: x / 0.9, jnp.ones(3), length=100, block_size=50)
        assert found.drift.shape == (2,)
        assert drift(step, Compressed("bfloat16"), jnp.ones(3), length=100).largest_block > 10
        ```
    """
    codec = how if isinstance(how, Compressed) else None
    inverse = None if codec else Inverse.of(how)
    if how is None:
        raise mistyped("how", how, "a function, a jax_revolve.Inverse or a jax_revolve.Compressed")
    n: int = jax.tree.leaves(xs)[0].shape[0] if length is None else length
    k = equal_blocks(n, walked_blocks(n)).block_size
    k = min(k if block_size is None else check_integer("block_size", block_size, least=1), n)

    def in_blocks(x: Any) -> Any:
        x = jnp.flip(x, 0) if reverse else x
        return x[: n // k * k].reshape(n // k, k, *x.shape[1:])

    def most(leaf: Any) -> float:
        return tolerance_of(leaf, inverse.drift_tol if inverse else codec and codec.tolerance)

    def both_ways(start: Any, xs: Any) -> tuple[Any, Any]:
        def step(carry: Any, x: Any) -> Any:
            after, y = f(carry, x)
            return after, (carry, after, x, y)

        def follow(reached: Any, inputs: Any) -> Any:
            before, after, x, y = inputs
            exact = before if codec is None else after
            reached = inverse.fun(reached, x, y) if inverse else f(reached, x)[0]
            scales = jax.tree.map(lambda *ends: jnp.maximum(*map(scale_of, ends)), exact, end)
            drifts = jax.tree.leaves(jax.tree.map(drift_of, reached, exact, scales))
            leaves = zip(drifts, jax.tree.leaves(exact), strict=True)
            ratios = [drift / most(leaf) for drift, leaf in leaves]
            return reached, [jnp.max(jnp.stack(each)) for each in (drifts, ratios)]

        end, history = lax.scan(step, start, xs, k)
        if codec is None:
            found = lax.scan(follow, end, history, reverse=True)[1]
            return end, [jnp.flip(each) for each in found]  # by distance from the block's end
        return end, lax.scan(follow, rounded(codec, start), history)[1]

    _, (drifts, ratios) = lax.scan(both_ways, init, jax.tree.map(in_blocks, xs), n // k)
    is_off = jnp.any(~(ratios <= 1), 0)
    return Drift(drifts[:, -1], jnp.where(jnp.any(is_off), jnp.argmax(is_off), k))


def _marked(results: Any) -> Any:
    """The results of a step, marked so that lax forwards none of them."""
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, _MARK), results)


_MARK = "jax_revolve: a result of the step"

_KEPT = "_jax_revolve_reversible"
"""The attribute of a step that keeps it."""
