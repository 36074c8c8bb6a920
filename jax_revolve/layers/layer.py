"""A layer: any callable, called as `equinox.nn.Sequential` calls its own."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax

from jax_revolve._compat.jaxprs import ClosedJaxpr, call_jaxpr
from jax_revolve._compat.values import as_array
from jax_revolve.jaxprs.parts import without_consts
from jax_revolve.layers.checkpointed import Checkpointed


class Layer(NamedTuple):
    """A layer, its number in the chain, and the arguments that it takes besides the carry."""

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
        closed, types, rest = eqx.filter_make_jaxpr(fun)(layer.call, *inputs)
        program, consts = without_consts(closed)
        run = jax.jit(call_jaxpr(program))
        return cls(program, run, list(consts), jax.tree.structure(types), rest)

    def __call__(self, *inputs: Any) -> Any:
        # Not before: an array that is made in one trace cannot be used in another.
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
