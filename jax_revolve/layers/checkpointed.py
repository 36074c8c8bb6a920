"""`Checkpointed` and `checkpoint_layers`: modules that are recomputed in the reverse pass."""

from typing import Any, TypeVar

import equinox as eqx
import jax

from jax_revolve._compat.values import is_jit_disabled
from jax_revolve.layers.segment import run_segment
from jax_revolve.schedule.arguments import mistyped

Model = TypeVar("Model")


class Checkpointed(eqx.nn.StatefulLayer):
    """A module whose reverse pass stores the inputs of a call, instead of its residuals, and runs
    the call again.

    It has the attributes, methods and `repr` of the wrapped module, so reading a model,
    `equinox.tree_at`, `equinox.nn.inference_mode`, filters and serialization work as before. Its
    type is `Checkpointed`, as `isinstance` says, and its only special method is `__call__`. It is
    like `equinox.filter_checkpoint`, but also saves memory on a CPU, where XLA undoes
    `jax.checkpoint` outside loops.

    Values, keys and state are as in a plain call: dropout draws the same mask again, and running
    statistics advance once. Derivatives of every order, forward mode and `vmap` work; only
    first-order reverse mode saves memory.

    **Arguments:**

    - `module`: an `equinox.Module` with a `__call__`. A `Checkpointed` module is not wrapped twice.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        from jax_revolve import Checkpointed

        mlp = eqx.nn.MLP(4, 4, width_size=64, depth=3, key=jax.random.key(0))
        x = jnp.ones(4)
        gradient = eqx.filter_grad(lambda model: jnp.sum(model(x)))(Checkpointed(mlp))
        gradient.layers[0].weight
        ```
    """

    _checkpointed_module: eqx.Module

    def __init__(self, module: Any) -> None:
        if isinstance(module, Checkpointed):
            module = module.wrapped
        if not isinstance(module, eqx.Module) or not callable(module):
            raise mistyped("module", module, "an equinox.Module with a __call__")
        self._checkpointed_module = module

    @property
    def wrapped(self) -> Any:
        """The wrapped module."""
        return self._checkpointed_module

    def is_stateful(self) -> bool:
        """Whether `equinox.nn.Sequential` passes the state to the module."""
        module = self.wrapped
        return isinstance(module, eqx.nn.StatefulLayer) and module.is_stateful()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if is_jit_disabled():
            return self.wrapped(*args, **kwargs)
        call = lambda module, args, kwargs: module(*args, **kwargs)  # noqa: E731
        return run_segment(call, self.wrapped, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling look up special methods on objects without fields.
        if name == "_checkpointed_module" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.wrapped, name)

    def __pdoc__(self, **kwargs: Any) -> Any:
        """The text of the module, for Equinox."""
        import wadler_lindig  # the caller of this, so imported already

        return wadler_lindig.pdoc(self.wrapped, **kwargs)


def checkpoint_layers(model: Model, layer_type: type | tuple[type, ...]) -> Model:
    """The model with every submodule of a type wrapped in [`jax_revolve.Checkpointed`][].

    **Arguments:**

    - `model`: any pytree of Equinox modules.
    - `layer_type`: a type of modules, or a tuple of them. Submodules of submodules are wrapped too.
        Those that are already wrapped, and the model itself, stay as they are.

    **Returns:**

    A model of the same type, with the same results.

    **Raises:**

    - `TypeError` if `layer_type` is not a type of Equinox modules;
    - `ValueError` if no such submodule exists; the error names the types that do.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        from jax_revolve import checkpoint_layers

        mlp = eqx.nn.MLP(4, 4, width_size=64, depth=3, key=jax.random.key(0))
        mlp = checkpoint_layers(mlp, eqx.nn.Linear)
        ```
    """
    types = layer_type if isinstance(layer_type, tuple) else (layer_type,)
    if not types or not all(isinstance(t, type) and issubclass(t, eqx.Module) for t in types):
        raise mistyped("layer_type", layer_type, "a subclass of equinox.Module or a tuple of such")
    found: set[type] = set()
    result = _wrapped_inside(model, types, found)
    if not any(issubclass(t, types) for t in found):
        names = ", ".join(sorted({t.__name__ for t in found})) or "none"
        wanted = ", ".join(t.__name__ for t in types)
        raise ValueError(
            f"layer_type must be the type of a submodule, but there is no {wanted}. The "
            f"types of its submodules are: {names}."
        )
    return result


def _wrapped_inside(node: Any, types: tuple[type, ...], found: set[type]) -> Any:
    """The same node with its submodules wrapped, inner ones first."""

    def wrap(child: Any) -> Any:
        if not isinstance(child, eqx.Module):
            return child
        found.add(type(child.wrapped if isinstance(child, Checkpointed) else child))
        inside = _wrapped_inside(child, types, found)
        is_wanted = isinstance(inside, types) and callable(inside)
        return Checkpointed(inside) if is_wanted else inside

    if isinstance(node, Checkpointed):
        return Checkpointed(_wrapped_inside(node.wrapped, types, found))
    is_inside = lambda x: x is not node and isinstance(x, eqx.Module)  # noqa: E731
    return jax.tree.map(wrap, node, is_leaf=is_inside)
