"""A layer: any callable, called as `equinox.nn.Sequential` calls its own."""

import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax

from jax_revolve.layers.checkpointed import Checkpointed


@jax.tree_util.register_static
class Rest:
    """The rest of a pytree without its arrays. Two are equal if a function that is traced with one
    can be used for the other: `1`, `1.0` and `True` are different, and so are `0.0` and `-0.0`, in
    static fields too, which the text of the structure shows."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        leaves, treedef = jax.tree.flatten(tree)
        signs = (str(x) if isinstance(x, float | complex) else None for x in leaves)
        text = re.sub(" at 0x[0-9a-f]+", "", str(treedef))  # equal objects have other addresses
        self._key = treedef, text, tuple(zip(map(type, leaves), leaves, signs, strict=True))

    @classmethod
    def of(cls, tree: Any) -> tuple[Any, "Rest"]:
        """The arrays, with `None` for all else, and the rest."""
        arrays, rest = eqx.partition(tree, eqx.is_array)
        return arrays, cls(rest)

    def with_arrays(self, arrays: Any) -> Any:
        return eqx.combine(arrays, self._tree)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rest) and self._key == other._key

    @property
    def is_hashable(self) -> bool:
        try:
            hash(self)
        except TypeError:
            return False
        return True


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
        """The next carry and the state, which is `None` for a stateless layer. Equal layers with
        inputs of equal types are traced once."""
        arrays, rest = Rest.of((self.call, x, key, state))
        if not rest.is_hashable:
            return self.run_untraced(x, key, state)
        arrays, rest = _traced_once(self._replace(number=0, call=len), rest, arrays)
        return rest.with_arrays(arrays)

    def run_untraced(self, x: Any, key: Any, state: Any) -> tuple[Any, Any]:
        given = self.requires_key or (self.takes_key and key is not None)
        keywords = {"key": key} if given else {}
        if not self.is_stateful:
            return self.call(x, **keywords), None
        x, state = self.call(x, state=state, **keywords)
        return x, state


@partial(jax.jit, static_argnums=(0, 1))
def _traced_once(like: Layer, rest: Rest, arrays: Any) -> tuple[Any, Rest]:
    """A run of a layer with the arguments of `like`, whose number and callable do not matter."""
    call, x, key, state = rest.with_arrays(arrays)
    return Rest.of(like._replace(call=call).run_untraced(x, key, state))


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
