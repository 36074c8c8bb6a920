"""A function as a family of primitives: what each transformation makes of a loop, or of a segment.

Three primitives. The *function* primitive is the function itself, the *jvp* primitive the function
and its tangents, the *tangent* primitive the tangents alone:

- run and lowered, they are the function, or its derivative in forward mode;
- batched, they are the same of the batched function;
- differentiated, the function is the jvp primitive, which in its turn is a function of the family,
  of values and tangents;
- linearized for reverse mode, by JAX's partial evaluation, the jvp primitive is a sweep, which may
  hold something for the reverse pass, and the tangent primitive, which is linear and takes what is
  held as well;
- transposed, the tangent primitive is the pullback.

Their operands are those of the function, then what is held, then the tangents of those operands
that are differentiated. Their parameters are the `function`, a tuple that begins with a jaxpr, its
`activity`, and as `held` the structure of the tree that is held.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import jax

from jax_revolve import _compat
from jax_revolve._compat import Primitive
from jax_revolve.autodiff.batching import batched_as, batched_dims, vmap_over
from jax_revolve.step.activity import Mask
from jax_revolve.step.loop import pick, substitute
from jax_revolve.step.once import Batched, batch_once

Flat = Sequence[Any]
F = TypeVar("F", bound=Any)


class Active(Protocol):
    """Which operands are differentiated, and which results have a tangent then."""

    @property
    def operands(self) -> Mask: ...
    @property
    def results(self) -> Mask: ...


def jvp_of_nonzero(run: Callable[[Flat], Flat], primals: Flat, tangents: Flat) -> Any:
    """`jax.jvp` of `run` in those primals alone whose tangents are not symbolically zero."""
    mask = [not _compat.is_zero(t) for t in tangents]
    return jax.jvp(
        lambda chosen: run(substitute(primals, mask, chosen)),
        (pick(primals, mask),),
        (pick(tangents, mask),),
    )


def function_types(*_: Any, function: Any) -> Any:
    """The types and effects of a function primitive."""
    return function.output_types, function.effects


class Family(ABC, Generic[F]):
    """The derivatives of a function primitive, from what is particular to its functions."""

    @abstractmethod
    def run(self, function: F, operands: Flat) -> Flat:
        """The results, as the function primitive computes them."""

    @abstractmethod
    def batch(self, axis: Any, operands: Flat, dims: Flat, function: F) -> Batched:
        """The batching rule of the function primitive."""

    @abstractmethod
    def run_as_one(self, function: F, run: Callable[[F, Flat], Flat], operands: Flat) -> Flat:
        """`run(function, operands)`, which runs that function or its derivative, with a function
        of the family in its place: what higher derivatives are taken of."""

    @abstractmethod
    def find_activity(self, function: F, operands: Flat, differentiated: Mask) -> Active:
        """Which operands are differentiated, of those that could be, and which results are."""

    @abstractmethod
    def primal_half(self, function: F, activity: Any) -> F:
        """The function that computes the values, once it is linearized."""

    def run_jvp(
        self, function: F, activity: Any, operands: Flat, tangents: Flat
    ) -> tuple[Flat, Flat]:
        """The results, and the tangents of the active ones, from those of the active operands."""
        mask = activity.operands

        def run(chosen: Flat) -> Flat:
            return self.run(function, substitute(operands, mask, chosen))

        results, results_dot = jax.jvp(run, (pick(operands, mask),), (tangents,))
        return results, pick(results_dot, activity.results)

    @abstractmethod
    def pull_back(
        self, function: F, activity: Any, operands: Flat, held: Any, cotangents: Flat
    ) -> Flat:
        """Cotangents of the active operands, from those of the active results."""

    def sweep(self, function: F, activity: Any, operands: Flat) -> tuple[Flat | None, Any, F]:
        """The values, a pytree that is held for the pullback, and the function as that takes it.

        By default nothing is held; the values, `None`, are those of the primal half."""
        del activity, operands
        return None, None, function

    def silent(self, function: F) -> F:
        """The function where its values were computed before: progress is shown once."""
        return function

    def later(self, function: F) -> F:
        """The function that `jax.checkpoint` runs again."""
        return function

    def __init__(self, primitive: Primitive, prune_jvp: Any = None) -> None:
        self._function_p = primitive
        _compat.define_derivative(primitive, jvp=self._jvp, transpose=self._transpose)
        self._tangent_p = _compat.new_primitive(
            f"{primitive.name}_tangent",
            implementation=self._run_tangent,
            output_types=_tangent_types,
            jvp=self._tangent_jvp,
            batch=self._batch_tangent,
            transpose=self._transpose_tangent,
        )
        self._jvp_p = _compat.new_primitive(
            f"{primitive.name}_jvp",
            implementation=self._run_jvp,
            output_types=_jvp_types,
            jvp=self._jvp_jvp,
            batch=self._batch_jvp,
            transpose=self._transpose_jvp,
            prune=prune_jvp,
            split=_compat.Split(
                num_primals=lambda function, activity: len(activity.operands),
                num_results=lambda function, activity: len(function.output_types),
                primal=primitive,
                primal_params=lambda function, activity: {
                    "function": self.primal_half(function, activity)
                },
                later_params=lambda function, activity: {
                    "function": self.later(function),
                    "activity": activity,
                },
                linearize=self._linearize,
                linear=self._tangent_p,
            ),
        )

    def _as_one(self, run: Callable[..., Flat], flat: Flat, function: F, **params: Any) -> Flat:
        return self.run_as_one(function, lambda f, flat: run(*flat, function=f, **params), flat)

    # The function primitive

    def _jvp(self, primals: Flat, tangents: Flat, function: F) -> Any:
        differentiated = tuple(not _compat.is_zero(t) for t in tangents)
        activity = self.find_activity(function, primals, differentiated)
        zeros = [_compat.symbolic_zero(t) for t in function.output_types]
        if not any(activity.results):
            return self._function_p.bind(*primals, function=function), zeros
        chosen = map(_compat.instantiate, pick(tangents, activity.operands))
        flat = self._jvp_p.bind(*primals, *chosen, function=function, activity=activity)
        results, active = flat[: len(zeros)], flat[len(zeros) :]
        return results, substitute(zeros, activity.results, active)

    def _transpose(self, cotangents: Flat, *operands: Any, function: F) -> Flat:
        """A linear function is its own derivative, at zero as anywhere."""
        linear = tuple(map(_compat.is_linear_input, operands))
        zeros = [_compat.zeros(x.aval) for x in pick(operands, linear)]
        point = substitute(operands, linear, zeros)
        activity = self.find_activity(function, point, linear)
        result = [None] * sum(activity.operands)
        if any(activity.results):
            cotangents = pick(cotangents, activity.results)
            result = self._pull_back(function, activity, point, cotangents)
        result = substitute([None] * len(operands), activity.operands, result)
        return [ct if asked else None for ct, asked in zip(result, linear, strict=True)]

    # The jvp primitive

    def _run_jvp(self, *flat: Any, function: F, activity: Active) -> Flat:
        operands, _, tangents = _take_apart(flat, activity)
        results, results_dot = self.run_jvp(function, activity, operands, tangents)
        values = [*results, *results_dot]
        types, _ = _jvp_types(function=function, activity=activity)
        return list(map(_compat.with_weak_type, values, types))

    def _jvp_jvp(self, primals: Flat, tangents: Flat, **params: Any) -> Any:
        run = partial(self._as_one, self._run_jvp, **params)
        return jvp_of_nonzero(run, primals, tangents)

    def _batch_jvp(
        self, axis: Any, flat: Flat, dims: Flat, function: F, activity: Active
    ) -> Batched:
        operands, _, tangents = _take_apart(flat, activity)
        operand_dims, _, tangent_dims = _take_apart(dims, activity)
        mask = activity.operands
        chosen_dims = pick(operand_dims, mask)
        pairs = zip(chosen_dims, tangent_dims, strict=True)
        if any(dim is None and tangent_dim is not None for dim, tangent_dim in pairs):
            return self._batch_directions(axis, flat, dims, function, activity)
        dims_out: list[Any] = []

        def run_batch(chosen: Flat) -> Flat:
            inputs = substitute(operands, mask, chosen)
            results, dims_out[:] = self.batch(axis, inputs, operand_dims, function)
            return results

        tangents = batched_as(axis, tangents, tangent_dims, chosen_dims)
        results, results_dot = jax.jvp(run_batch, (pick(operands, mask),), (tangents,))
        active, active_dims = (pick(x, activity.results) for x in (results_dot, dims_out))
        return [*results, *active], [*dims_out, *active_dims]

    def _batch_directions(
        self, axis: Any, flat: Flat, dims: Flat, function: F, activity: Active
    ) -> Batched:
        """Several directions at the same point, as in `jax.jacfwd`: the values are computed once,
        by a function that has batched tangents and no batched values."""

        def run(*flat: Any) -> Flat:
            return self._as_one(self._run_jvp, flat, function, activity=activity)

        def batch_directions(*flat: Any) -> Batched:
            dims_out = batched_dims(axis, run, flat, dims)
            return vmap_over(axis, run, dims, dims_out)(*flat), dims_out

        return batch_once(function, (axis, activity), batch_directions, flat, dims)

    def _transpose_jvp(self, cotangents: Flat, *flat: Any, function: F, activity: Active) -> Flat:
        operands, _, tangents = _take_apart(flat, activity)
        cotangents = cotangents[len(function.output_types) :]
        result = self._pull_back(function, activity, operands, cotangents)
        return [*[None] * len(operands), *_of_linear(tangents, result)]

    def _pull_back(self, function: F, activity: Active, operands: Flat, cotangents: Flat) -> Flat:
        """With the sweep that `pull_back` takes."""
        _, held, function = self.sweep(function, activity, operands)
        return self.pull_back(function, activity, operands, held, cotangents)

    def _linearize(
        self, operands: Flat, function: F, activity: Active
    ) -> tuple[Flat, Flat, dict[str, Any]]:
        results, held, swept = self.sweep(function, activity, operands)
        if results is None:
            half = self.primal_half(function, activity)
            results = self._function_p.bind(*operands, function=half)
        leaves, treedef = jax.tree.flatten(held)
        return results, leaves, {"function": swept, "activity": activity, "held": treedef}

    # The tangent primitive

    def _run_tangent(self, *flat: Any, function: F, activity: Active, held: Any) -> Flat:
        del held
        results = self._run_jvp(*flat, function=self.silent(function), activity=activity)
        return results[len(function.output_types) :]

    def _tangent_jvp(self, primals: Flat, tangents: Flat, function: F, **params: Any) -> Any:
        run = partial(self._as_one, self._run_tangent, function=self.silent(function), **params)
        return jvp_of_nonzero(run, primals, tangents)

    def _batch_tangent(
        self, axis: Any, flat: Flat, dims: Flat, function: F, activity: Active, held: Any
    ) -> Batched:
        del held
        flat, dims = (
            [*operands, *tangents]
            for operands, _, tangents in (_take_apart(x, activity) for x in (flat, dims))
        )
        results, dims_out = self._batch_jvp(axis, flat, dims, self.silent(function), activity)
        first = len(function.output_types)
        return results[first:], dims_out[first:]

    def _transpose_tangent(
        self, cotangents: Flat, *flat: Any, function: F, activity: Active, held: Any
    ) -> Flat:
        operands, leaves, tangents = _take_apart(flat, activity)
        values = jax.tree.unflatten(held, leaves)
        result = self.pull_back(function, activity, operands, values, cotangents)
        return [*[None] * (len(operands) + len(leaves)), *_of_linear(tangents, result)]


def _take_apart(flat: Flat, activity: Active) -> tuple[Flat, Flat, Flat]:
    """Operands, what is held, and tangents."""
    first, last = len(activity.operands), len(flat) - sum(activity.operands)
    return list(flat[:first]), list(flat[first:last]), list(flat[last:])


def _jvp_types(*_: Any, function: Any, activity: Active) -> Any:
    tangents, _ = _tangent_types(function=function, activity=activity)
    return [*function.output_types, *tangents], function.effects


def _tangent_types(*_: Any, function: Any, activity: Active, **__: Any) -> Any:
    active = pick(function.output_types, activity.results)
    return [t.to_tangent_aval() for t in active], frozenset()


def _of_linear(tangents: Flat, cotangents: Flat) -> list[Any]:
    """The cotangents of those tangents that a transposition rule is asked for."""
    return [
        ct if _compat.is_linear_input(tangent) else None
        for ct, tangent in zip(cotangents, tangents, strict=True)
    ]
