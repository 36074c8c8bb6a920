"""Primitives that compute functions, such as whole loops, as classes with a method for each rule.

A function primitive comes with two others. The *jvp* primitive computes the function and its
tangents, the *tangent* primitive the tangents alone:

    function --jvp--> jvp primitive --run, batch, jvp--> the function of values and tangents
                            |
                            | partial evaluation (jax.vjp, jax.linearize, jax.checkpoint)
                            v
                      vjp_fwd, which saves arrays  +  tangent primitive(arrays, tangents)
                                                                  |
                                                                  | transpose
                                                                  v
                                                               vjp_bwd

The operands of the tangent primitive are the function's, then the saved arrays, then the tangents
of the differentiated operands. Parameters are the `function`, a tuple that begins with a jaxpr and
has `output_types` and `effects`; its `activity`; and `aux`, whatever else the pullback needs. The
tangent primitive omits operands whose values it does not need, such as a buffer for results, and
has their types as `absent`.

JAX has a class with methods of these names, `jax.experimental.hijax.HiPrim`, which needs neither
further primitive nor rules of partial evaluation. In 0.12, its `vjp_fwd` and `remat` are called
under `jax.checkpoint` only with the option `jax_remat3`. Once that option is the default of the
oldest version that we support, `HiPrim` replaces this file.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.extend.core import Primitive, Var
from jax.interpreters import partial_eval as pe

from jax_revolve._compat.interpreters import Logs, in_own_settings, register_with_remat3
from jax_revolve._compat.primitives import new_primitive, with_parameters
from jax_revolve._compat.values import (
    added,
    instantiate,
    is_linear_input,
    is_zero,
    pick,
    spread,
    substitute,
    symbolic_zero,
    with_weak_type,
    zeros,
)

Flat: TypeAlias = Sequence[Any]

Batched: TypeAlias = tuple[Flat, Flat]
"""Results and their batch axes."""

Mask: TypeAlias = tuple[bool, ...]

Absent: TypeAlias = Flat | None
"""The types of absent operands, and `None` for the others."""


class Active(NamedTuple):
    """Which operands are differentiated, and which results then have a tangent. A loop has an
    `Activity` instead, with more fields."""

    operands: Mask
    results: Mask
    values: Mask | None = None
    """Which results are used beside the tangents; `None` for all."""


class FunctionPrimitive(ABC):
    """The rules of a function primitive. Creating an object registers them with JAX."""

    has_dead_code = True
    """See `new_primitive`."""

    def __init__(self, primitive: str | Primitive) -> None:
        self.primitive = primitive = new_primitive(
            primitive,
            implementation=self.run,
            output_types=lambda *_, function: (function.output_types, function.effects),
            batch=self.batch,
            jvp=self._jvp,
            transpose_into=self._transpose,
            prune=self.dce,
            known=self.known,
            keys=self.keys,
            interpret=self.interpret,
            has_dead_code=self.has_dead_code,
            recomputed=self._recomputed,
        )
        self.tangent_p = new_primitive(
            f"{primitive.name}_tangent",
            implementation=self.tangents,
            output_types=self._tangent_types,
            batch=self.batch_tangents,
            jvp=self.jvp_of_tangents,
            transpose_into=self._transpose_tangents,
        )
        self.jvp_p = new_primitive(
            f"{primitive.name}_jvp",
            implementation=self.both,
            output_types=self._types_of_both,
            batch=self.batch_both,
            jvp=self.jvp_of_both,
            transpose_into=self._transpose_both,
            prune=self.dce_jvp,
            keys=self._keys_of_both if self.keys else None,
        )
        rule = in_own_settings(self._split_values)
        pe.custom_partial_eval_rules[self.jvp_p] = rule
        pe.partial_eval_jaxpr_custom_rules[self.jvp_p] = self._split_equation
        register_with_remat3(primitive, self._keep)

    # What every class says

    @abstractmethod
    def run(self, *operands: Any, function: Any) -> Flat:
        """The results."""

    @abstractmethod
    def batch(self, axis: Any, operands: Flat, dims: Flat, function: Any) -> Batched: ...

    @abstractmethod
    def activity(self, function: Any, differentiated: Mask, /) -> Any: ...

    @abstractmethod
    def jvp(self, function: Any, activity: Any, /, *flat: Any) -> Flat:
        """The results and the tangents of active results, from the operands and the tangents of
        active ones. JAX differentiates it."""

    @abstractmethod
    def primal_half(self, function: Any, activity: Any, /) -> Any:
        """The function that computes the linearized values."""

    @abstractmethod
    def batch_both(
        self, axis: Any, flat: Flat, dims: Flat, function: Any, activity: Any
    ) -> Batched: ...

    @abstractmethod
    def batch_tangents(self, axis: Any, flat: Flat, dims: Flat, **params: Any) -> Batched: ...

    # What a class may say

    def vjp_bwd(
        self, cotangents: Flat, operands: Flat, saved: Flat, function: Any, activity: Any, aux: Any
    ) -> Flat:
        """The cotangents of active operands, from the cotangents of active results."""
        raise NotImplementedError

    def vjp_bwd_into(
        self,
        cotangents: Flat,
        sums: Flat,
        operands: Flat,
        saved: Flat,
        function: Any,
        activity: Any,
        aux: Any,
    ) -> tuple[Flat, Logs]:
        """`vjp_bwd`, added to `sums` where there are some, and what derivative rules logged."""
        found = self.vjp_bwd(cotangents, operands, saved, function, activity, aux)
        return list(map(added, sums, found)), {}

    def vjp_fwd(
        self, function: Any, activity: Any, operands: Flat, /
    ) -> tuple[Flat, Flat, Any, Any]:
        """The results, the arrays to save, and the `function` and `aux` of `vjp_bwd`."""
        half = self.primal_half(function, activity)
        return self.primitive.bind(*operands, function=half), [], function, None

    def needed(self, function: Any, aux: Any, operands: Flat, /) -> Sequence[bool]:
        """The operands on which the tangents depend."""
        del function, aux
        return [True] * len(operands)

    def explicit(
        self, function: Any, activity: Any, primals: Flat, tangents: Flat, /
    ) -> tuple[Any, Flat, Flat] | None:
        """If derivative rules close over tracers, the function of these as further operands, all
        its primals, and all its tangents."""
        del function, activity, primals, tangents

    def refined(self, function: Any, activity: Any, operands: Flat, /) -> Any:
        """The activity for operands of these types."""
        del function, operands
        return activity

    def effects(self, function: Any, activity: Any, /) -> Any:
        """Those of the function and its derivative rules."""
        del activity
        return function.effects

    def remat(self, function: Any, /) -> Any:
        """The function to run after its values are known."""
        return function

    def keeping(self, function: Any, policy: Any, types: Flat, /) -> tuple[Any, Any] | None:
        """The function with the values as further results that a policy of `jax.checkpoint` keeps,
        and the one that takes them as further operands; `None` if the policy keeps none."""
        del function, policy, types

    # Methods that a class may have, and otherwise leaves to JAX: see `new_primitive`.

    dce: Any = None
    """`prune` of the function primitive."""
    dce_jvp: Any = None
    """`prune` of the jvp primitive."""
    known: Any = None
    keys: Any = None

    def interpret(self, run: Callable[[dict[str, Any]], Any], params: dict[str, Any]) -> Any:
        return run(params)

    # The function primitive

    def _jvp(self, primals: Flat, tangents: Flat, function: Any) -> Any:
        activity = self.activity(function, tuple(not is_zero(t) for t in tangents))
        dots = [symbolic_zero(t) for t in function.output_types]
        if not any(activity.results):
            return self.primitive.bind(*primals, function=function), dots
        if explicit := self.explicit(function, activity, primals, tangents):
            function, primals, tangents = explicit
            activity = self.activity(function, tuple(not is_zero(t) for t in tangents))
        activity = self.refined(function, activity, primals)
        chosen = map(instantiate, pick(tangents, activity.operands))
        flat = self.jvp_p.bind(*primals, *chosen, function=function, activity=activity)
        return flat[: len(dots)], substitute(dots, activity.results, flat[len(dots) :])

    def _transpose(
        self, cotangents: Flat, sums: Flat, *operands: Any, function: Any
    ) -> tuple[Flat, Logs]:
        """A linear function is its own derivative, at zero as everywhere."""
        activity = self.activity(function, tuple(map(is_linear_input, operands)))
        result, logs = [None] * sum(activity.operands), {}
        if any(activity.results):
            point = [zeros(x.aval) if is_linear_input(x) else x for x in operands]
            cotangents, sums = (
                pick(cotangents, activity.results),
                pick(sums, activity.operands),
            )
            result, logs = self._pull_back(cotangents, sums, point, function, activity)
        return _of_linear(operands, spread(result, activity.operands)), logs

    def _recomputed(self, params: dict[str, Any]) -> dict[str, Any]:
        return {**params, "function": self.remat(params["function"])}

    def _keep(self, policy: Any, *operands: Any, function: Any) -> Any:
        """The rule of `jax.checkpoint` with the option `jax_remat3`."""
        count = len(function.output_types)
        found = self.keeping(function, policy, list(map(jax.typeof, operands)))
        first, rest = (function, function) if found is None else found
        results = self.primitive.bind(*operands, function=first)
        again = partial(self.primitive.bind, function=self.remat(rest))
        return results[:count], results[count:], lambda kept, *operands: again(*operands, *kept)

    # The jvp primitive

    def both(self, *flat: Any, function: Any, activity: Any) -> Flat:
        return self.with_types(self.jvp(function, activity, *flat), function, activity)

    def with_types(self, results: Flat, function: Any, activity: Any) -> Flat:
        types = [*function.output_types, *tangent_types(function, activity)]
        return list(map(with_weak_type, results, types))

    def jvp_of_both(self, primals: Flat, tangents: Flat, **params: Any) -> Any:
        return jvp_of_nonzero(partial(self.both, **params), primals, tangents)

    def _types_of_both(self, *_: Any, function: Any, activity: Any) -> Any:
        types = [*function.output_types, *tangent_types(function, activity)]
        return types, self.effects(function, activity)

    def _keys_of_both(self, *flat: Any, function: Any, activity: Any) -> Flat:
        """The keys that the values use. Tangents use the same random numbers."""
        return self.keys(*flat[: len(activity.operands)], function=function)

    def _transpose_both(
        self, cotangents: Flat, sums: Flat, *flat: Any, function: Any, activity: Any
    ) -> tuple[Flat, Logs]:
        operands, _, tangents = take_apart(flat, activity)
        cotangents, sums = cotangents[len(function.output_types) :], sums[len(operands) :]
        result, logs = self._pull_back(cotangents, sums, operands, function, activity)
        return [*[None] * len(operands), *_of_linear(tangents, result)], logs

    def _split_values(self, trace: Any, *tracers: Any, function: Any, activity: Any) -> Flat:
        """JAX's partial evaluation. When it linearizes for reverse mode, it knows the primals but
        not the tangents."""
        params = {"function": function, "activity": activity}
        primals = tracers[: len(activity.operands)]
        tangents = tracers[len(primals) :]
        if all(t.is_known() for t in tangents) or not all(x.is_known() for x in primals):
            return trace.default_process_primitive(self.jvp_p, tracers, params)
        known = [x.pval.get_known() for x in primals]
        results, residuals, params = self._linearize(known, **params)
        operands = [*map(trace.to_jaxpr_tracer, residuals), *tangents]
        return [*results, *trace.default_process_primitive(self.tangent_p, operands, params)]

    def _split_equation(
        self, saveable: Any, unknown: Sequence[bool], available: Sequence[bool], eqn: Any
    ) -> tuple[Any, Any, list[bool], list[bool], list[Any]]:
        """The rule for `jax.checkpoint`: the equation for known values, the equation that runs
        later, which results are unknown, which are available later, and which operands to keep. The
        later equation recomputes everything that the policy does not keep."""
        function, activity = eqn.params["function"], eqn.params["activity"]
        num_primals, num_results = len(activity.operands), len(function.output_types)
        pairs = zip(eqn.invars, available, strict=True)
        kept = [v for v, is_there in pairs if not is_there and isinstance(v, Var)]
        later = [True] * len(eqn.outvars)
        if any(unknown[:num_primals]):
            return None, eqn, later, later, kept
        again = with_parameters(eqn, self._recomputed(eqn.params))
        if not any(unknown):
            return eqn, again, [False] * len(later), later, kept
        primals, saved = list(eqn.invars[:num_primals]), list[Any]()
        if found := self.keeping(function, saveable, [v.aval for v in primals]):
            function, rest = found
            saved = [Var(t) for t in function.output_types[num_results:]]
            mask = (*activity.operands, *[False] * len(saved))
            params = {"function": self.remat(rest), "activity": self.activity(rest, mask)}
            tangents = eqn.invars[num_primals:]
            again = with_parameters(eqn.replace(invars=[*primals, *saved, *tangents]), params)
            activity = self.activity(function, activity.operands)
        known = eqn.replace(
            primitive=self.primitive,
            invars=primals,
            outvars=[*eqn.outvars[:num_results], *saved],
            params={"function": self.primal_half(function, activity)},
        )
        unknown = [i >= num_results for i in range(len(later))]
        return known, again, unknown, later, [*kept, *saved]

    # The tangent primitive

    def tangents(
        self,
        *flat: Any,
        function: Any,
        activity: Any,
        aux: Any,
        absent: Absent,
        run: Callable[..., Flat] | None = None,
    ) -> Flat:
        """The tangents of active results, by `both` or `run`."""
        del aux
        operands, _, dots = take_apart(flat, activity, absent)
        again, run = self.remat(function), run or self.both
        both = run(*operands, *dots, function=again, activity=activity)
        return both[len(function.output_types) :]

    def jvp_of_tangents(self, primals: Flat, tangents: Flat, **params: Any) -> Any:
        return jvp_of_nonzero(partial(self.tangents, **params), primals, tangents)

    def _tangent_types(self, *_: Any, function: Any, activity: Any, **__: Any) -> Any:
        return tangent_types(function, activity), self.effects(function, activity)

    def _transpose_tangents(
        self, cotangents: Flat, sums: Flat, *flat: Any, activity: Any, **params: Any
    ) -> tuple[Flat, Logs]:
        count = len(flat) - sum(activity.operands)
        result, logs = self._pull_back_from(
            cotangents, sums[count:], flat[:count], activity=activity, **params
        )
        return [*[None] * count, *_of_linear(flat[count:], result)], logs

    def _linearize(
        self, operands: Flat, function: Any, activity: Any
    ) -> tuple[Flat, Flat, dict[str, Any]]:
        """The results, and the residuals and parameters of the tangent primitive."""
        results, arrays, function, aux = self.vjp_fwd(function, activity, operands)
        needed = self.needed(function, aux, operands)
        types = map(jax.typeof, operands)
        absent = tuple(None if need else t for t, need in zip(types, needed, strict=True))
        params = {"function": function, "activity": activity, "aux": aux, "absent": absent}
        return results, [*pick(operands, needed), *arrays], params

    def _pull_back(
        self, cotangents: Flat, sums: Flat, operands: Flat, function: Any, activity: Any
    ) -> tuple[Flat, Logs]:
        _, residuals, params = self._linearize(operands, function, activity)
        return self._pull_back_from(cotangents, sums, residuals, **params)

    def _pull_back_from(
        self,
        cotangents: Flat,
        sums: Flat,
        residuals: Flat,
        function: Any,
        activity: Any,
        aux: Any,
        absent: Absent,
    ) -> tuple[Flat, Logs]:
        operands, arrays, _ = take_apart(residuals, activity, absent, are_linear=False)
        return self.vjp_bwd_into(cotangents, sums, operands, arrays, function, activity, aux)


def tangent_types(function: Any, activity: Any) -> list[Any]:
    return [t.to_tangent_aval() for t in pick(function.output_types, activity.results)]


def take_apart(
    flat: Flat, activity: Any, absent: Absent = None, *, are_linear: bool = True
) -> tuple[Flat, Flat, Flat]:
    """Operands, with zeros for the absent ones, saved arrays, and tangents, if any."""
    rest = iter(flat)
    types = absent or [None] * len(activity.operands)
    operands = [next(rest) if type_ is None else zeros(type_) for type_ in types]
    arrays = list(rest)
    last = len(arrays) - (sum(activity.operands) if are_linear else 0)
    return operands, arrays[:last], arrays[last:]


def _of_linear(operands: Flat, cotangents: Flat) -> list[Any]:
    """The cotangents of linear operands, which a transposition rule returns."""
    return [ct if is_linear_input(x) else None for x, ct in zip(operands, cotangents, strict=True)]


def jvp_in(run: Callable[..., Flat], primals: Flat, mask: Sequence[bool], tangents: Flat) -> Any:
    """`jax.jvp` of `run` in the primals that the mask marks, in the direction of these tangents."""
    of_chosen = lambda chosen: run(*substitute(primals, mask, chosen))  # noqa: E731
    return jax.jvp(of_chosen, (pick(primals, mask),), (list(tangents),))


def jvp_of_nonzero(run: Callable[..., Flat], primals: Flat, tangents: Flat) -> Any:
    """`jax.jvp` of `run` in the primals whose tangents are not symbolic zeros."""
    mask = [not is_zero(t) for t in tangents]
    return jvp_in(run, primals, mask, pick(tangents, mask))
