"""`certify`: how far a gradient is from the exact one, by forward mode.

Let `e` be the error of a gradient `g`, and `v` a direction of independent normal numbers. Then

    g . v - dfun . v = e . v

is normal, with mean 0 and variance `|e|^2`, and forward mode computes `dfun . v` exactly, in the
memory of a carry and its tangent. The sum of the squares over several directions is `|e|^2` times a
chi-square number.

The derivative along a direction does not tell its parts by leaf, so each leaf's part has a tangent
of its own. The tangents of all parts run as one batch, with the values computed once, and by
linearity they sum to the tangent of the whole.
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
from scipy.special import chdtri

from jax_revolve._compat.interpreters import filtered_traceback
from jax_revolve._compat.values import is_traced, pick, substitute
from jax_revolve.programs.fit import program_bytes
from jax_revolve.schedule.arguments import Memory, called_as, check_integer, mistyped, parse_bytes
from jax_revolve.schedule.report import Printed
from jax_revolve.step.loop import is_inexact

FIELDS = ["error", "low", "high", "cosine", "norm", "parts"]
TAIL = 0.025
"""The probability on each side of the interval."""


@partial(jax.tree_util.register_dataclass, data_fields=FIELDS, meta_fields=[])
@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Printed):
    """How far a gradient `g` is from the exact one: what [`jax_revolve.certify`][] returns.

    - `error`: the norm of the difference, estimated, relative to the norm of `g`.
    - `low`, `high`: the ends of an interval that holds it in 95 of 100 cases.
    - `cosine`: of the angle between both, estimated.
    - `norm`: the norm of `g`.
    - `parts`: the same of each argument and each leaf, by name.
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
        own = f"error {self.error:.2g} ({self.low:.2g} to {self.high:.2g}), "
        own += f"cosine {self.cosine:.4f}, norm {self.norm:.3g}"
        return "\n".join([own, *(f"{name}: {part}" for name, part in self.parts.items())])


@called_as("certify(fun, gradient)(x)")
def certify(
    fun: Callable[..., Any],
    gradient: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    probes: int = 8,
    key: Any = None,
    memory: Memory = None,
) -> Callable[..., Certificate]:
    """Estimates how far a gradient is from the exact gradient of `fun`, without computing that.

    It compares any `gradient` with forward mode in random directions: of compressed checkpoints, an
    inverse, an adjoint by hand, a truncated or a continuous one. `fun` may run plain
    `jax.lax.while_loop`s. The estimate holds the rounding errors of forward mode, too. Where leaves
    have different units, the sum over them means nothing: read the numbers of each leaf.

    **Arguments:**

    - `fun`: a function that returns a real scalar, as for `jax.grad`, and has forward mode.
    - `gradient`: any function of the same arguments that returns what `jax.grad(fun, argnums)`
        does; it may return anything or nothing for leaves that are not floating-point.
    - `argnums`: as `jax.grad`.
    - `probes`: the number of random directions, an int >= 1. Each takes a forward-mode run, with a
        tangent for each leaf. With 8, the interval is from 0.68 to 1.92 times the estimate.
    - `key`: a `jax.random.key`; `None` is `jax.random.key(0, impl="rbg")`, which takes less memory
        than other generators.
    - `memory`: the most bytes of temporaries in forward mode: an int or a string such as `"2GB"`.
        As many tangents as fit then run together, at least one; `fun` is compiled twice to see.
        `None`, the default, runs one direction after another.

    **Returns:**

    A function of the arguments of `fun`, which returns a [`jax_revolve.typing.Certificate`][].

    **Raises:**

    `TypeError` or `ValueError` if an argument is not as above, `fun` does not return a real scalar,
    or `gradient` not a gradient; `ValueError` if `memory` is given where the arguments are traced.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax import lax
        from jax_revolve import certify

        def loss(x, steps=100):
            return jnp.sum(lax.fori_loop(0, steps, lambda i, y: y + 0.1 * jnp.sin(y), x))

        x = jnp.linspace(0.1, 0.2, 50)
        print(certify(loss, lambda x: jax.grad(loss)(x, 90))(x))
        assert certify(loss, jax.grad(loss))(x).error < 1e-6
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
        found = gradient(*args, **kwargs)
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
                raise TypeError(
                    f"gradient must return an array of shape {np.shape(leaf)} for {name}, as "
                    f"jax.grad(fun, argnums={argnums}) does, but what it returns {other}."
                )

        def value_of(*active: Any) -> Any:
            chosen = jax.tree.unflatten(tree, substitute([x for _, x in flat], is_active, active))
            every = dict(enumerate(args)) | {n % len(args): x for n, x in zip(numbers, chosen)}
            result = fun(*every.values(), **kwargs)
            if jnp.shape(result) or not jnp.issubdtype(jnp.result_type(result), jnp.floating):
                raise TypeError(f"fun must return a real scalar, as for jax.grad, not {result}.")
            return result

        count = len(leaves)
        # XLA keeps threefry's counters, twice the size of the arguments, for all directions.
        own = jax.random.key(0, impl="rbg") if key is None else key
        operands = (
            [jnp.asarray(x) for x in leaves.values()],
            [jnp.asarray(given[p]) for p in leaves],
        )

        def products(lanes: int, values: Any, gradients: Any) -> Any:
            """Of each part of each direction, with the gradient and with the exact one."""

            def of_part(number: jax.Array) -> Any:
                keys = jax.random.split(jax.random.fold_in(own, number // count), count)
                parts = [
                    jnp.where(number % count == i, _normal(keys[i], x), 0)
                    for i, x in enumerate(values)
                ]
                # In this order, so that the tangent may overwrite the direction.
                both = lax.optimization_barrier((sum(map(_dot, gradients, parts)), parts))
                return both[0], jax.jvp(value_of, values, both[1])[1]

            lanes = {"batch_size": lanes} if lanes > 1 else {}
            both = lax.map(of_part, jnp.arange(probes * count), **lanes)
            return jnp.stack(both).reshape(2, probes, count)

        lanes = count
        if budget is not None:
            if any(map(is_traced, jax.tree.leaves((args, kwargs, operands)))):
                raise ValueError(
                    "memory must be None where the arguments of a certificate are traced, as in "
                    f"jax.jit, but is {memory!r}: the program is compiled to see what it takes."
                )
            compiled = [jax.jit(partial(products, n)).lower(*operands).compile() for n in (1, 2)]
            one, two = (total - kept for total, kept in (program_bytes(p, ()) for p in compiled))
            lanes = min(max(1 + (budget - one) // max(two - one, 1), 1), probes * count)
        both = products(lanes, *operands)
        squares = jnp.stack([_dot(g, jnp.conj(g)) for g in operands[1]])

        def of(chosen: list[int], **parts: Any) -> Certificate:
            """From the products of these leaves."""
            given, exact = jnp.sum(both[..., np.array(chosen)], -1)
            total, norm = jnp.linalg.norm(given - exact), jnp.sqrt(sum(squares[i] for i in chosen))
            divisors = probes, chdtri(probes, TAIL), chdtri(probes, 1 - TAIL)
            errors = (jnp.where(total == 0, 0, total / (norm * n**0.5)) for n in divisors)
            cosine = jnp.vdot(given, exact) / (jnp.linalg.norm(given) * jnp.linalg.norm(exact))
            return Certificate(*errors, cosine, norm, **parts)

        groups = {a: [i for i, b in enumerate(arguments) if a == b] for a in arguments}
        groups |= {name: [i] for i, name in enumerate(names)}
        parts = {name: of(chosen) for name, chosen in groups.items()}
        return of(list(range(count)), parts=parts)

    return certified


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
