"""`certify`: how far a gradient is from the exact one, by forward mode.

Let `e` be the error of a gradient `g`, and `v` a direction of independent normal numbers. Then

    g . v - dfun . v = e . v

is normal, with mean 0 and variance `|e|^2`, and forward mode computes `dfun . v` exactly, in the
memory of a carry and its tangent. The sum of the squares over several directions is `|e|^2` times a
chi-square number.

The error of one leaf needs the derivative along the leaf's part of a direction: from the derivative
along a whole direction it does not follow. By linearity, the parts of a direction sum to the whole,
so errors by leaf give the total for nothing. All parts go through one forward-mode run as a batch
of tangents, which evaluates the values once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr, tree_flatten_with_path

from jax_revolve._compat.interpreters import filtered_traceback
from jax_revolve._compat.values import is_traced, pick, substitute
from jax_revolve.loops.variables import change, values_of, variables_in
from jax_revolve.programs.fit import program_bytes
from jax_revolve.schedule.arguments import Memory, called_as, check_integer, mistyped, parse_bytes
from jax_revolve.schedule.report import Printed
from jax_revolve.step.loop import is_inexact

TAIL = 0.025
"""The probability on each side of the interval."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["error", "low", "high", "cosine", "norm", "parts"],
    meta_fields=[],
)
@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Printed):
    """How far a gradient `g` is from the exact one: what [`jax_revolve.certify`][] returns.

    - `error`: the estimated norm of the difference, relative to the norm of `g`.
    - `low`, `high`: the ends of an interval that holds it in 95 of 100 cases.
    - `cosine`: of the angle between both, estimated.
    - `norm`: the norm of `g`.
    - `parts`: the same of each argument, if there are several, and each leaf, by name.
    """

    error: Any
    low: Any
    high: Any
    cosine: Any
    norm: Any
    parts: "dict[str, Certificate]" = field(default_factory=dict)

    def __str__(self) -> str:
        if np.ndim(self.error) or is_traced(self.error):
            return f"error {self.error}, from {self.low} to {self.high}"
        lines = [f"{n}: {c}" for n, c in self.parts.items()]
        own = f"error {self.error:.2g} ({self.low:.2g} to {self.high:.2g}), "
        return "\n".join([f"{own}cosine {self.cosine:.4f}, norm {self.norm:.3g}", *lines])


@called_as("certify(fun, gradient)(x)")
def certify(
    fun: Callable[..., Any],
    gradient: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    probes: int = 8,
    by_leaf: bool = True,
    key: Any = None,
    memory: Memory = None,
) -> Callable[..., Certificate]:
    """Estimates how far a gradient is from the exact gradient of `fun`, without computing that.

    It compares `gradient` with forward mode in random directions, which takes the memory of a carry
    and its tangent. So it certifies any gradient: `jax.grad` of a loop with compressed checkpoints
    or an inverse, an adjoint written by hand, a truncated or a continuous one. `fun` may run any
    loops, also plain `jax.lax.while_loop`s.

    The estimate holds rounding errors of forward mode, too: for an exact gradient it is not 0.

    Where leaves have different units, their sum means nothing: read the numbers of each leaf.

    **Arguments:**

    - `fun`: a function that returns a real scalar, as for `jax.grad`. It needs forward mode.
    - `gradient`: any function of the same arguments that returns a gradient as `jax.grad(fun,
        argnums)` does. It is called once. A tree may have anything in place of leaves that are not
        floating-point or complex arrays, or lack them. Of a Flax NNX module, it is
        `jax.grad(fun, allow_int=True)`.
    - `argnums`: as `jax.grad`.
    - `probes`: the number of random directions, an int >= 1. Each takes a forward-mode run. With 8,
        the interval reaches from 0.68 to 1.92 times the estimate.
    - `by_leaf`: whether to estimate the error of each leaf, too. A run then has a tangent for each
        leaf, and the values are still computed once. With `False`, it has one.
    - `key`: a `jax.random.key`; `None` is `jax.random.key(0, impl="rbg")`, which takes less memory
        than the default generator.
    - `memory`: the most bytes of temporaries of the forward-mode runs: an int or a string such as
        `"2GB"`. Tangents then run together, by `jax.vmap`, as many as fit, at least one. Compiles
        `fun` twice to see. `None`, the default, runs one direction after another.

    **Returns:**

    A function of the arguments of `fun` that returns a [`jax_revolve.typing.Certificate`][], which
    can be printed.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not as above, `fun` does not return a real scalar,
    or `gradient` not a gradient; `ValueError` if `memory` is given where the arguments are traced.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax import lax
        from jax_revolve import certify

        def loss(x):
            return jnp.sum(lax.fori_loop(0, 100, lambda i, y: y + 0.1 * jnp.sin(y), x))

        def truncated(x):  # through the last ten steps alone
            middle = lax.fori_loop(0, 90, lambda i, y: y + 0.1 * jnp.sin(y), x)
            last = lambda y: jnp.sum(lax.fori_loop(0, 10, lambda i, y: y + 0.1 * jnp.sin(y), y))
            return jax.grad(last)(lax.stop_gradient(middle))

        print(certify(loss, truncated)(jnp.linspace(0.1, 0.2, 50)))
        assert certify(loss, jax.grad(loss))(jnp.linspace(0.1, 0.2, 50)).error < 1e-6
        ```
    """
    for name, value in (("fun", fun), ("gradient", gradient)):
        if not callable(value):
            raise mistyped(name, value, "a function")
    probes = check_integer("probes", probes, least=1)
    budget = None if memory is None else parse_bytes(memory)
    numbers: Sequence[int] = [argnums] if isinstance(argnums, int) else argnums

    @filtered_traceback
    def certified(*args: Any, **kwargs: Any) -> Certificate:
        # Of Flax NNX modules: the runs below must begin where the gradient began.
        variables = variables_in((args, kwargs))
        before = values_of(variables)
        found = gradient(*args, **kwargs)
        pairs = enumerate(zip(before, values_of(variables), strict=True))
        change((args, kwargs), {i: old for i, (old, new) in pairs if new is not old})
        flat, tree = tree_flatten_with_path([args[n] for n in numbers])
        given = dict(tree_flatten_with_path([found] if isinstance(argnums, int) else found)[0])
        is_active = [_is_active(x) for _, x in flat]
        leaves = dict(pick(flat, is_active))
        if not leaves:
            raise TypeError(f"argnums must name floating-point arguments, but is {argnums}.")
        arguments = [f"argument {numbers[path[0].idx] % len(args)}" for path in leaves]
        names = [a + keystr(path[1:]) for a, path in zip(arguments, leaves, strict=True)]
        for name, (path, leaf) in zip(names, leaves.items(), strict=True):
            if path not in given or np.shape(given[path]) != np.shape(leaf):
                other = f"has {np.shape(given[path])}" if path in given else "has none"
                as_ = f"jax.grad(fun, argnums={argnums}{', allow_int=True' if before else ''})"
                raise TypeError(
                    f"gradient must return an array of shape {np.shape(leaf)} for {name}, as "
                    f"{as_} does, but what it returns {other}."
                )

        def value_of(*active: Any) -> Any:
            chosen = jax.tree.unflatten(tree, substitute([x for _, x in flat], is_active, active))
            every = list(args)
            for n, x in zip(numbers, chosen, strict=True):
                every[n] = x
            result = fun(*every, **kwargs)
            if jnp.shape(result) or not jnp.issubdtype(jnp.result_type(result), jnp.floating):
                shown = jax.typeof(result) if hasattr(result, "dtype") else result
                raise TypeError(f"fun must return a real scalar, as for jax.grad, but not {shown}.")
            return result

        count = len(leaves) if by_leaf else 1
        # XLA keeps threefry's counters, twice the size of the arguments, for all directions.
        own = jax.random.key(0, impl="rbg") if key is None else key
        operands = (
            [jnp.asarray(x) for x in leaves.values()],
            [jnp.asarray(given[p]) for p in leaves],
        )

        def products(lanes: int, values: Any, gradients: Any) -> Any:
            """Of each part of each direction, with the gradient and with the exact one."""

            def of_part(number: jax.Array) -> Any:
                keys = jax.random.split(jax.random.fold_in(own, number // count), len(values))
                parts = list(map(_normal, keys, values))
                if by_leaf:
                    parts = [jnp.where(number % count == i, v, 0) for i, v in enumerate(parts)]
                # In this order, so that the tangent may overwrite the direction.
                both = lax.optimization_barrier((sum(map(_dot, gradients, parts)), parts))
                return both[0], jax.jvp(value_of, values, both[1])[1]

            both = lax.map(
                of_part, jnp.arange(probes * count), batch_size=lanes if lanes > 1 else None
            )
            return jnp.stack(both).reshape(2, probes, count)

        lanes = count
        if budget is not None:
            if any(map(is_traced, jax.tree.leaves((args, kwargs, operands)))):
                raise ValueError(
                    "memory must be None where the arguments of a certificate are traced, as in "
                    f"jax.jit, but is {memory!r}: the program is compiled to see what it takes."
                )
            lanes = _lanes(products, probes * count, budget, operands)
        both = products(lanes, *operands)
        squares = jnp.stack([_dot(g, jnp.conj(g)) for g in operands[1]])

        def of(chosen: Sequence[int], **parts: Any) -> Certificate:
            given, exact = jnp.sum(both[..., np.array(chosen) if by_leaf else [0]], -1)
            return _estimate(given, exact, jnp.sqrt(jnp.sum(squares[np.array(chosen)])), **parts)

        groups = {a: [i for i, b in enumerate(arguments) if a == b] for a in arguments}
        groups |= {name: [i] for i, name in enumerate(names)}
        parts = {name: of(chosen) for name, chosen in groups.items() if by_leaf}
        return of(range(len(leaves)), parts=parts)

    return certified


def _lanes(run: Callable[..., Any], most: int, budget: int, operands: Any) -> int:
    """The most tangents that can run together within the budget of temporaries."""
    compiled = [jax.jit(partial(run, n)).lower(*operands).compile() for n in (1, 2)]
    one, two = (total - kept for total, kept in (program_bytes(p, ()) for p in compiled))
    return min(max(1 + (budget - one) // max(two - one, 1), 1), most)


def _is_active(leaf: Any) -> bool:
    is_array = hasattr(leaf, "dtype") and hasattr(leaf, "shape")
    return is_inexact(leaf) if is_array else isinstance(leaf, float | complex)


def _normal(key: Any, like: Any) -> Any:
    """Normal numbers of variance 1, of a complex number in both its parts."""
    scale = 2**0.5 if jnp.issubdtype(like.dtype, jnp.complexfloating) else 1
    return scale * jax.random.normal(key, like.shape, like.dtype)


def _dot(gradient: Any, tangent: Any) -> Any:
    """Their product as JAX defines it for complex numbers, in at least single precision."""
    dtype = jnp.promote_types(jnp.result_type(gradient, tangent), jnp.float32)
    return jnp.sum(jnp.real(gradient.astype(dtype) * tangent.astype(dtype)))


def _estimate(given: Any, exact: Any, norm: Any, **parts: Any) -> Certificate:
    """From the products of a gradient of this norm, and of the exact one, with the directions."""
    from scipy.special import chdtri

    total = jnp.linalg.norm(given - exact)
    divisors = given.size, *(chdtri(given.size, tail) for tail in (TAIL, 1 - TAIL))
    error, low, high = (jnp.where(total == 0, 0, total / (norm * n**0.5)) for n in divisors)
    cosine = jnp.vdot(given, exact) / (jnp.linalg.norm(given) * jnp.linalg.norm(exact))
    return Certificate(error, low, high, cosine, norm, **parts)
