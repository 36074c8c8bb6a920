"""Function primitives of this library: what loops, sweeps and segments have in common.

A sweep that is pushed forward stays an equation of its own at every order, because its reverse mode
is ours, too: its values and its tangents are a function (`Pushed`), whose pullback consists of
sweeps.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve._compat.functions import (
    Active,
    Batched,
    Flat,
    FunctionPrimitive,
    Mask,
    jvp_in,
    jvp_of_nonzero,
    tangent_types,
)
from jax_revolve._compat.memories import is_on_host, to_host
from jax_revolve._compat.primitives import Primitive
from jax_revolve._compat.values import instantiate, is_zero, pick, spread, substitute
from jax_revolve.autodiff.batching import (
    Vmap,
    batch,
    batch_once,
    batched_dims,
    mapped,
    vmap_over,
)
from jax_revolve.step.loop import is_inexact
from jax_revolve.step.reports import silenced


class Function(FunctionPrimitive):
    """A function primitive whose batching rules are traced once."""

    def remat(self, function: Any) -> Any:
        """The values are already computed, so progress stays silent."""
        return silenced(function)

    def batch_both(
        self, axis: Any, flat: Flat, dims: Flat, function: Any, activity: Any
    ) -> Batched:
        """Several directions at one point, as in `jax.jacfwd`, share what JAX finds equal."""
        run = partial(self.both, function=function, activity=activity)
        rule = partial(batch, axis, run, dims)
        return batch_once(function, ("jvp", axis, activity), rule, flat, dims)

    def batch_tangents(self, axis: Any, flat: Flat, dims: Flat, **params: Any) -> Batched:
        rule = partial(batch, axis, partial(self.tangents, **params), dims)
        key = ("tangent", axis, params["activity"])
        return batch_once(params["function"], key, rule, flat, dims)


class Pushable(Function):
    """A sweep, or a pushed sweep."""

    pushed: "Pushable"
    """The sweep and its tangents."""

    def __init__(self, primitive: str | Primitive) -> None:
        super().__init__(primitive)
        self.pushed = PushedSweep(f"{self.primitive.name}_pushed", self)

    @abstractmethod
    def jvp_in_reverse(self, function: Any, activity: Any, /, *flat: Any) -> Flat:
        """The same function as `jvp`, of primitives that have a reverse mode."""

    @abstractmethod
    def products(self, function: Any, operands: Flat, cotangents: Flat, /) -> Flat:
        """Scalars whose sum is the product of the results with cotangents (`None`: zero), as JAX
        differentiates it in reverse mode."""

    def serve(
        self, function: Any, activity: Active, active: Active, operands: Flat, results: Flat, /
    ) -> tuple[Flat, Any]:
        """Of a sweep and its tangents: saved arrays that serve its derivative, and the `aux` of
        `pull_back_pushed`; by default none, and `None`."""
        del function, activity, active, operands, results
        return [], None

    def pull_back_pushed(
        self,
        cotangents: Flat,
        operands: Flat,
        saved: Flat,
        function: Any,
        activity: Active,
        active: Active,
        aux: Any,
        /,
    ) -> Flat:
        raise NotImplementedError

    def both_in_reverse(self, *flat: Any, function: Any, activity: Active) -> Flat:
        """As `both`, of primitives that have a reverse mode."""
        return self.with_types(self.jvp_in_reverse(function, activity, *flat), function, activity)

    def tangents_in_reverse(self, *flat: Any, **params: Any) -> Flat:
        return self.tangents(*flat, **params, run=self.both_in_reverse)

    def jvp_of_tangents(self, primals: Flat, tangents: Flat, **params: Any) -> Any:
        return jvp_of_nonzero(partial(self.tangents_in_reverse, **params), primals, tangents)

    def jvp_of_both(self, primals: Flat, tangents: Flat, **params: Any) -> Any:
        run = partial(self.pushed.primitive.bind, function=Pushed.of(**params))
        return jvp_of_nonzero(run, primals, tangents)

    def batch_both(
        self, axis: Any, flat: Flat, dims: Flat, function: Any, activity: Any
    ) -> Batched:
        return self.pushed.batch(axis, flat, dims, function=Pushed.of(function, activity))


class Pushed(NamedTuple):
    """A sweep and its tangents, which is a function of its own, mapped over axes."""

    jaxpr: Any
    function: Any
    activity: Active
    output_types: tuple[Any, ...]
    transfers: Any
    vmaps: tuple[Vmap, ...] = ()

    @classmethod
    def of(cls, function: Any, activity: Active) -> "Pushed":
        types = (*function.output_types, *tangent_types(function, activity))
        return cls(function.jaxpr, function, activity, types, function.transfers)

    @property
    def effects(self) -> Any:
        return self.function.effects

    @property
    def is_read_once(self) -> bool:
        return self.function.is_read_once

    @property
    def has_rule(self) -> bool:
        return self.function.has_rule


class PushedSweep(Pushable):
    def __init__(self, primitive: str, base: Pushable) -> None:
        Function.__init__(self, primitive)
        self.pushed, self._base = self, base

    def _of(self, function: Any) -> Pushable:
        """The rules of the function that is pushed."""
        return self if isinstance(function, Pushed) else self._base

    def run(self, *flat: Any, function: Pushed) -> Flat:
        return self._run(self._of(function.function).both, function, flat)

    def _run_by_loops(self, *flat: Any, function: Pushed) -> Flat:
        return self._run(self._of(function.function).both_in_reverse, function, flat)

    def _run(self, both: Callable[..., Flat], function: Pushed, flat: Flat) -> Flat:
        of_one = partial(both, function=function.function, activity=function.activity)
        return mapped(of_one, function.vmaps, wanted=lambda vmap: vmap.dims_out)(*flat)

    def batch(self, axis: Any, operands: Flat, dims: Flat, function: Pushed) -> Batched:
        found = batched_dims(axis, partial(self.run, function=function), operands, dims)
        if function.is_read_once:  # in several directions at one point, each example reads files
            of_values, count = function.function, len(function.activity.operands)
            results = len(of_values.output_types)
            vmaps = [
                v._replace(dims=v.dims[:count], dims_out=v.dims_out[:results])
                for v in function.vmaps
            ]
            alone = partial(self._of(of_values).run, function=of_values)
            alone = mapped(alone, vmaps, wanted=lambda vmap: vmap.dims_out)
            values = batched_dims(axis, alone, operands[:count], dims[:count])
            found[: len(values)] = values
        vmaps = (*function.vmaps, Vmap(axis, tuple(dims), tuple(found)))
        function = function._replace(vmaps=vmaps)
        types = tuple(jax.make_jaxpr(partial(self.run, function=function))(*operands).out_avals)
        function = function._replace(output_types=types)
        return self.primitive.bind(*operands, function=function), found

    def activity(self, function: Pushed, differentiated: Mask, /) -> Active:
        is_any = any(differentiated)
        return Active(
            differentiated, tuple(is_inexact(t) and is_any for t in function.output_types)
        )

    def jvp(self, function: Pushed, activity: Active, /, *flat: Any) -> Flat:
        return self._pushed_again(self.run, function, activity, flat)

    def jvp_in_reverse(self, function: Pushed, activity: Active, /, *flat: Any) -> Flat:
        return self._pushed_again(self._run_by_loops, function, activity, flat)

    def _pushed_again(
        self, run: Callable[..., Flat], function: Pushed, active: Active, flat: Flat
    ) -> Flat:
        operands, dots = flat[: len(active.operands)], flat[len(active.operands) :]
        own = partial(run, function=function)
        results, dots = jvp_in(own, operands, active.operands, dots)
        return [*results, *pick(dots, active.results)]

    def primal_half(self, function: Pushed, activity: Active, /) -> Pushed:
        del activity
        return function

    def tangents(self, *flat: Any, function: Pushed, **params: Any) -> Flat:
        if function.has_rule:  # as the values, by loops: see `vjp_fwd`
            params.setdefault("run", self.both_in_reverse)
        return super().tangents(*flat, function=function, **params)

    def vjp_fwd(
        self, function: Pushed, activity: Active, operands: Flat, /
    ) -> tuple[Flat, Flat, Pushed, Any]:
        # With a rule, results may be others once they are linearized. They are computed by loops,
        # where saved arrays have no tangents, and so must their tangents be.
        if function.has_rule:

            def chosen_results(chosen: Flat) -> tuple[list[Any], list[Any]]:
                inputs = substitute(operands, activity.operands, chosen)
                results = list(self._run_by_loops(*inputs, function=function))
                return pick(results, activity.results), results

            primals = pick(operands, activity.operands)
            _, pullback, results = jax.vjp(chosen_results, primals, has_aux=True)
            arrays, tree = jax.tree.flatten(pullback)
            return results, arrays, function, tree
        results = self.primitive.bind(*operands, function=function)
        if function.vmaps:
            return results, [], function, None
        of_one = function.function, function.activity
        arrays, aux = self._of(function.function).serve(*of_one, activity, operands, results)
        return results, arrays, function, aux

    def products(self, function: Pushed, operands: Flat, cotangents: Flat, /) -> Flat:
        """Of all examples."""
        inner, mask = function.function, function.activity.operands
        given = [c is not None for c in cotangents]
        own = self._of(inner).products

        def of_one(*flat: Any) -> Flat:
            operands, dots = flat[: len(mask)], flat[len(mask) :][: sum(mask)]
            chosen = spread(flat[len(mask) + sum(mask) :], given)
            values, tangents = chosen[: len(inner.output_types)], chosen[len(inner.output_types) :]
            if all(c is None for c in tangents):
                return list(own(inner, operands, values))
            # <a, F> and the derivative of <b, F>, from one evaluation: that of <b + t a, F>.
            cts = spread(tangents, function.activity.results)
            has_value = [a is not None for a in values]
            pairs = zip(values, cts, strict=True)
            cts = [jnp.zeros_like(a) if b is None and a is not None else b for a, b in pairs]

            def at(chosen: Flat, moved: Flat) -> list[Any]:
                all_cts = substitute(cts, has_value, moved)
                return list(own(inner, substitute(operands, mask, chosen), all_cts))

            primals = (pick(operands, mask), pick(cts, has_value))
            return jax.jvp(at, primals, (list(dots), pick(values, has_value)))[1]

        return summed(of_one, function.vmaps, given)(*operands, *pick(cotangents, given))

    def vjp_bwd(
        self,
        cotangents: Flat,
        operands: Flat,
        saved: Flat,
        function: Pushed,
        activity: Active,
        aux: Any,
    ) -> Flat:
        mask = activity.operands
        if function.has_rule:
            (result,) = jax.tree.unflatten(aux, saved)(list(map(instantiate, cotangents)))
        elif aux is not None:
            of_one = function.function, function.activity, activity
            back = self._of(function.function).pull_back_pushed
            result = back(cotangents, operands, saved, *of_one, aux)
        else:
            cts = spread(cotangents, activity.results)
            cts = [None if ct is None or is_zero(ct) else ct for ct in cts]
            of = lambda flat: self.products(function, flat, cts)  # noqa: E731
            result = gradient_of(of, operands, mask)
        # Saved arrays may be in the host's memory, and their cotangents are zeros anywhere.
        pairs = zip(result, pick(operands, mask), strict=True)
        return [to_host(ct) if is_on_host(x) and not is_on_host(ct) else ct for ct, x in pairs]


def gradient_of(products: Callable[[Flat], Flat], operands: Flat, mask: Sequence[bool]) -> Flat:
    """The gradient of the sum of products of operands, with respect to those that the mask marks.
    They are differentiated one by one, because an addition would be another kernel."""
    of = lambda chosen: list(products(substitute(operands, mask, chosen)))  # noqa: E731
    found, pullback = jax.vjp(of, pick(operands, mask))
    return pullback(list(map(jnp.ones_like, found)))[0]


def summed(run: Callable[..., Flat], vmaps: Sequence[Vmap], given: Sequence[bool]) -> Any:
    """Products of one example, from its operands and the given cotangents, summed over examples."""
    for vmap in vmaps:
        run = partial(_summed_over, run, vmap, given)
    return run


def _summed_over(run: Any, vmap: Vmap, given: Sequence[bool], *flat: Any) -> Flat:
    dims = pick(vmap.dims_out, given)
    first = len(flat) - len(dims)
    # One example's share of the cotangent of a result that all share.
    cts = [
        ct / vmap.axis.size if d is None else ct for ct, d in zip(flat[first:], dims, strict=True)
    ]
    found = vmap_over(vmap.axis, run, (*vmap.dims, *dims), 0)(*flat[:first], *cts)
    return [jnp.sum(x, 0) for x in found]
