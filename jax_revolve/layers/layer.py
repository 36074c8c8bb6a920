"""A layer: any callable, called as `equinox.nn.Sequential` calls its layers. Tracing finds its
program, its work and the bytes of its residuals."""

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr, context_of, is_literal, variables
from jax_revolve._compat.values import as_array, bytes_of, pick, substitute
from jax_revolve.jaxprs.parts import without_consts
from jax_revolve.layers.checkpointed import Checkpointed
from jax_revolve.loops.variables import with_changes
from jax_revolve.profiles.in_force import profile_in_force
from jax_revolve.schedule.chain import Layers
from jax_revolve.step.work import work_of


class Layer(NamedTuple):
    """A layer, its number in the chain, and which arguments it takes besides the carry."""

    number: int
    call: Callable[..., Any]
    takes_key: bool
    requires_key: bool
    is_stateful: bool

    @classmethod
    def of(cls, number: int, call: object) -> "Layer":
        if not callable(call):
            raise TypeError(
                f"layers must be callables, but layer {number} is {call!r} of type "
                f"{type(call).__name__}."
            )
        inner = call.wrapped if isinstance(call, Checkpointed) else call
        try:
            parameters = dict(inspect.signature(inner).parameters)
        except ValueError:  # some built-in functions have no signature
            parameters = {}
        required = {n for n, p in parameters.items() if p.default is inspect.Parameter.empty}
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        takes_key = "key" in parameters or (isinstance(inner, eqx.Module) and takes_any)
        # An optional state, as in equinox.nn.LayerNorm, is only passed on.
        is_module = isinstance(inner, eqx.nn.StatefulLayer)
        is_stateful = inner.is_stateful() if is_module else "state" in required
        return cls(number, call, takes_key, "key" in required, is_stateful)

    @property
    def name(self) -> str:
        """For error messages: its number and its name."""
        inner = self.call.wrapped if isinstance(self.call, Checkpointed) else self.call
        own = getattr(inner, "__name__", None)
        return f"layer {self.number} ({own or type(inner).__name__})"

    def run(self, x: Any, key: Any, state: Any) -> tuple[Any, Any]:
        """The next carry and the state, which is `None` for a stateless layer."""
        given = self.requires_key or (self.takes_key and key is not None)
        keywords = {"key": key} if given else {}
        if not self.is_stateful:
            return self.call(x, **keywords), None
        x, state = self.call(x, state=state, **keywords)
        return x, state


class TracedLayer(NamedTuple):
    """A layer traced once for one chain: its program, from `consts` and inputs to results."""

    program: ClosedJaxpr
    run: Callable[..., list[Any]]
    consts: list[Any]
    results: Any
    rest: Any

    @classmethod
    def of(cls, layer: Layer, *inputs: Any) -> "TracedLayer":
        """A layer with inputs of these types. Its weights are inputs, too."""
        fun = lambda call, *others: layer._replace(call=call).run(*others)  # noqa: E731
        closed, (types, changes), (rest, _) = eqx.filter_make_jaxpr(with_changes(fun))(
            layer.call, *inputs
        )
        if changes:
            raise TypeError(
                f"layers must not change variables of Flax NNX modules, as {layer.name} does: "
                "checkpointed_chain would lose the changes. Give a layer that draws random numbers "
                "its key, as lambda x, key: layer(x, rngs=nnx.Rngs(key)), or run the layers by "
                "nnx.scan in jax_revolve.checkpoint_loops."
            )
        program, consts = without_consts(closed)
        run = jax.jit(call_jaxpr(program))
        return cls(program, run, list(consts), jax.tree.structure(types), rest)

    def __call__(self, *inputs: Any) -> Any:
        # Make the arrays here, because an array made in one trace cannot be used in another.
        results = self.run(*map(as_array, self.consts), *arrays_of(inputs))
        return eqx.combine(jax.tree.unflatten(self.results, results), self.rest)


def arrays_of(tree: Any) -> list[Any]:
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))


def check_state(layers: Sequence[Layer], state: Any) -> None:
    """Refuse a missing state, and a state that no layer takes."""
    stateful = [layer.name for layer in layers if layer.is_stateful]
    if state is None and stateful:
        others = f" and {len(stateful) - 1} others" if len(stateful) > 1 else ""
        raise ValueError(
            f"state must be given, since {stateful[0]}{others} are stateful: pass the "
            "equinox.nn.State that equinox.nn.make_with_state returned, or the latest one."
        )
    if state is not None and not isinstance(state, eqx.nn.State):
        raise TypeError(
            f"state must be an equinox.nn.State or None, but is of type {type(state).__name__}."
        )
    if state is not None and not stateful:
        raise ValueError(
            "state must be None, since no layer is stateful: none is an equinox.nn.StatefulLayer "
            "whose is_stateful() is true, or requires an argument `state`."
        )


# Measuring


def trace(
    layers: Sequence[Layer], x: Any, keys: Sequence[Any], state: Any
) -> tuple[list[TracedLayer], Layers]:
    """The traced layers, their work and sizes. Equal programs are measured and compiled once."""
    known: dict[Any, tuple[TracedLayer, tuple[int, int]]] = {}
    sizes: list[tuple[int, int]] = []
    carries: list[int] = []
    traced: list[TracedLayer] = []

    def run() -> None:
        carry, before = x, "x"
        for layer, key in zip(layers, keys, strict=True):
            own = state.substate(layer.call) if layer.is_stateful else None
            try:
                one = TracedLayer.of(layer, carry, key, own)
                alike = _key_of(one.program)
                if alike not in known:
                    operands = [*one.consts, *arrays_of((layer.call, carry, key, own))]
                    known[alike] = one, _work_and_residuals(one.program, operands)
            except Exception as error:
                types = eqx.tree_pformat(carry, short_arrays=True)
                error.add_note(f"Raised by {layer.name} of a chain, called with {before}, {types}.")
                raise
            same, size = known[alike]
            traced.append(one._replace(run=same.run))
            sizes.append(size)
            carries.append(bytes_of(map(jax.typeof, arrays_of(carry))))
            carry, _ = traced[-1](layer.call, carry, key, own)
            before = f"what {layer.name} returns"

    jax.make_jaxpr(run)()
    work, residuals = zip(*sizes, strict=True)
    return traced, Layers(work, tuple(carries), residuals)


def _key_of(program: ClosedJaxpr) -> Hashable:
    key = structure(program)
    try:
        hash(key)
    except TypeError:  # of a parameter: the program is only equal to itself
        return program
    return key


def _work_and_residuals(closed: ClosedJaxpr, operands: list[Any]) -> tuple[int, int]:
    """The work of a run, and the residual bytes besides operands and results."""
    work, fun = work_of(closed, profile_in_force()), call_jaxpr(closed)
    mask = [jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact) for x in operands]
    counts: list[int] = []

    def linearized(*operands: Any) -> list[Any]:
        def run(chosen: list[Any]) -> list[Any]:
            return fun(*substitute(operands, mask, chosen))

        results, pullback = jax.vjp(run, pick(operands, mask))
        counts.append(len(results))
        return [*results, *jax.tree.leaves(pullback)]

    jaxpr = jax.make_jaxpr(linearized)(*operands).jaxpr
    residuals = dict.fromkeys(variables(jaxpr.outvars[counts[0] :]))
    there = {*jaxpr.invars, *jaxpr.constvars, *variables(jaxpr.outvars[: counts[0]])}
    return max(round(work), 1), bytes_of(v.aval for v in residuals if v not in there)


def structure(jaxpr: Any) -> Hashable:
    """A key that is equal for jaxprs of the same program, as long as both exist."""
    numbers: dict[Any, int] = {}

    def of_atom(a: Any) -> Hashable:
        literal = is_literal(a)
        return of(np.asarray(a.val)) if literal else numbers.setdefault(a, len(numbers)), a.aval

    def of(value: Any) -> Hashable:
        if hasattr(value, "eqns"):
            return structure(value)
        if isinstance(value, tuple):
            return type(value), *map(of, value)
        if isinstance(value, float | complex | np.generic | np.ndarray):  # 0.0 == -0.0
            data = np.asarray(value)
            return type(value), data.shape, data.dtype, data.tobytes()
        return type(value), value  # 1 == True

    def of_equation(eqn: Any) -> Hashable:
        params = of(tuple(sorted(eqn.params.items())))
        before, after = (tuple(map(of_atom, atoms)) for atoms in (eqn.invars, eqn.outvars))
        return eqn.primitive, before, params, context_of(eqn), after

    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return (
        *map(of_atom, (*inner.constvars, *inner.invars)),
        *map(id, getattr(jaxpr, "consts", ())),
        *map(of_equation, inner.eqns),
        *map(of_atom, inner.outvars),
    )
