"""A step that is called directly, neither traced nor compiled: with `jit=False`."""

import base64
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve._compat import tangent_type, zeros
from jax_revolve.host.body.compiled import Pulled
from jax_revolve.host.placement import Values
from jax_revolve.step.activity import Activity
from jax_revolve.step.loop import Operands, is_inexact, pick, substitute
from jax_revolve.step.pullback import add


class _Taped(NamedTuple):
    """The pullback of a step, the types of its cotangents, and the ys that have one."""

    pullback: Callable[..., Any]
    types: list[Any]
    ys: list[bool]


class EagerStep:
    """A step of NumPy, of a solver that is not JAX, or of JAX's functions one by one.

    `f` may be a tree, such as a `jax.tree_util.Partial`: the arrays in it are consts. The interface
    is that of `CompiledStep`.
    """

    def __init__(self, f: tuple[list[Any], list[bool], Any], carry_tree: Any, x_tree: Any) -> None:
        """`f` are the leaves of the function, which of them are consts, and its structure."""
        self._f, self._carry_tree, self._x_tree = f, carry_tree, x_tree
        self.y_tree: Any = None
        """Known after the first step."""
        self._differentiated, self._init = Operands([], [], []), list[bool]()

    def differentiate(self, operands: Operands, differentiated: Operands) -> None:
        """Take all of the carry that may have a derivative to have one."""
        carry = list(map(is_inexact, operands.carry))
        self._differentiated = differentiated._replace(carry=carry)
        self._init = differentiated.carry

    @property
    def described(self) -> str | None:
        """The structure of a y as text, which another process understands."""
        if self.y_tree is None:
            return None
        tree = jax.tree.unflatten(self.y_tree, range(self.y_tree.num_leaves))
        return base64.b64encode(pickle.dumps(tree)).decode()

    @described.setter
    def described(self, text: str | None) -> None:
        if text is not None:
            self.y_tree = jax.tree.structure(pickle.loads(base64.b64decode(text)))

    @property
    def activity(self) -> Activity:
        """What is differentiated. Every y is taken to be, until it is known."""
        consts, carry, xs = map(tuple, self._differentiated)
        return Activity(consts, tuple(self._init), xs, carry, (True,) * self.y_tree.num_leaves)

    def forward(self, consts: Values, carry: Values, x: Values) -> tuple[Values, Values]:
        """The next carry, and a y."""
        new, y = self._run(consts, carry, x)
        for old, leaf in zip(carry, new, strict=True):
            if (leaf.shape, leaf.dtype) != (old.shape, old.dtype):
                raise TypeError(
                    "f must return a carry with the shapes and dtypes of init where jit=False, "
                    f"but returned {leaf.dtype}{list(leaf.shape)} for {old.dtype}{list(old.shape)}."
                )
        return new, y

    def _run(self, consts: Values, carry: Values, x: Values) -> tuple[Values, Values]:
        leaves, is_const, tree = self._f
        f = jax.tree.unflatten(tree, substitute(leaves, is_const, consts))
        trees = (self._carry_tree, carry), (self._x_tree, x)
        try:
            new, y = f(*(jax.tree.unflatten(tree, leaves) for tree, leaves in trees))
        except jax.errors.UnexpectedTracerError as error:
            raise ValueError(
                "f must not close over values that are differentiated where jit=False, because it "
                "is not traced. Pass them in a jax.tree_util.Partial, in init, or in xs."
            ) from error
        leaves, tree = jax.tree.flatten(new)
        if tree != self._carry_tree:
            raise TypeError(
                "f must return a carry with the structure of init where jit=False, which is "
                f"{self._carry_tree}, but returned {tree}."
            )
        ys, self.y_tree = jax.tree.flatten(y)
        return list(map(jnp.asarray, leaves)), list(map(jnp.asarray, ys))

    def pull(self, inputs: Operands, ct_carry: Values, ct_y: Values, ct_consts: Values) -> Pulled:
        """One step, linearized and pulled back."""
        return self.pull_taped(self.tape(inputs)[2], ct_carry, ct_y, ct_consts)

    def tape(self, inputs: Operands) -> tuple[Values, Values, _Taped]:
        """The next carry, a y, and the step's pullback."""
        masks = self._differentiated

        def active_step(*chosen: Values) -> tuple[Values, tuple[Values, Values]]:
            results = self._run(*map(substitute, inputs, masks, chosen))
            return [r for part in results for r in part if is_inexact(r)], results

        chosen = map(pick, inputs, masks)
        active, pullback, (carry, y) = jax.vjp(active_step, *chosen, has_aux=True)
        types = list(map(tangent_type, active))
        return carry, y, _Taped(pullback, types, list(map(is_inexact, y)))

    def pull_taped(
        self, residuals: _Taped, ct_carry: Values, ct_y: Values, ct_consts: Values
    ) -> Pulled:
        """The pullback of a taped step."""
        cotangents = [*ct_carry, *pick(ct_y, residuals.ys)]
        consts, carry, x = residuals.pullback(
            [
                zeros(aval) if ct is None else ct
                for aval, ct in zip(residuals.types, cotangents, strict=True)
            ]
        )
        return Pulled(carry, x, add(ct_consts, consts))
