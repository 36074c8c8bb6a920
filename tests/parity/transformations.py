"""What JAX can do to a function. Each is applied to the same program made with either loop."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jax import lax

Program = Callable[..., Any]
Arguments = tuple[Any, ...]


def inexact_leaves(tree: Any) -> list[Any]:
    leaves = map(jnp.asarray, jax.tree.leaves(tree))
    return [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]


def loss(program: Program) -> Callable[..., Any]:
    """A real number that every floating-point result of the program contributes to."""

    def total(*arguments: Any) -> Any:
        parts = inexact_leaves(program(*arguments))
        assert parts
        sums = [jnp.sum(jnp.cos(x.astype(complex) + 0.3j * i)) for i, x in enumerate(parts)]
        return jnp.real(sum(sums))

    return total


def gradient(program: Program, arguments: Arguments) -> Callable[..., Any]:
    return jax.grad(loss(program), tuple(range(len(arguments))))


def directions(arguments: Arguments) -> Arguments:
    return tuple(jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in arguments)


def directional(
    fun: Callable[..., Any], arguments: Arguments, *, forward: bool
) -> Callable[..., Any]:
    """The derivative of a real function in one direction, forwards or in reverse."""
    along = directions(arguments)

    def forwards(*arguments: Any) -> Any:
        return jax.jvp(fun, arguments, along)[1]

    def in_reverse(*arguments: Any) -> Any:
        parts = jax.grad(fun, tuple(range(len(arguments))))(*arguments)
        return sum(jnp.vdot(a, b) for a, b in zip(parts, along, strict=True))

    return forwards if forward else in_reverse


def batched(arguments: Arguments, axis: int = 0) -> Arguments:
    return tuple(jnp.stack([x, 0.5 * x, 1.5 * x], axis=min(axis, x.ndim)) for x in arguments)


def vjp(program: Program, *arguments: Any) -> Any:
    parts, pullback = jax.vjp(lambda *a: inexact_leaves(program(*a)), *arguments)
    return parts, pullback([jnp.ones_like(x) for x in parts])


def linearize(program: Program, *arguments: Any) -> Any:
    parts, push = jax.linearize(lambda *a: inexact_leaves(program(*a)), *arguments)
    return parts, push(*directions(arguments)), jax.vmap(push)(*batched(directions(arguments)))


def transposed_linearize(program: Program, *arguments: Any) -> Any:
    value, push = jax.linearize(loss(program), *arguments)
    return jax.linear_transpose(push, *arguments)(jnp.ones_like(value))


def value_and_grad_with_results(program: Program, *arguments: Any) -> Any:
    def both(*arguments: Any) -> Any:
        results = program(*arguments)
        return loss(lambda: results)(), results

    return jax.value_and_grad(both, has_aux=True)(*arguments)


def jacrev(program: Program, *arguments: Any) -> Any:
    def real_leaves(*arguments: Any) -> Any:
        return [jnp.real(x).astype(float) for x in inexact_leaves(program(*arguments))]

    return jax.jacrev(real_leaves)(*arguments)


def of_directions(program: Program, arguments: Arguments, *forward: bool) -> Callable[..., Any]:
    """A derivative in a direction for each of these, the innermost first."""
    fun = loss(program)
    for is_forward in forward:
        fun = directional(fun, arguments, forward=is_forward)
    return fun


def of_direction(
    program: Program, arguments: Arguments, *forward: bool, of_all: bool = True
) -> Callable[..., Any]:
    """The gradient of derivatives in a direction."""
    fun = of_directions(program, arguments, *forward)
    return jax.grad(fun, tuple(range(len(arguments))) if of_all else 0)


def vmap_of_last_axis(program: Program, *arguments: Any) -> Any:
    *others, last = arguments
    run = jax.vmap(program, (*[None] * len(others), last.ndim), out_axes=-1)
    return run(*others, *batched((last,), axis=last.ndim))


def grad_inside_scan(program: Program, *arguments: Any) -> Any:
    def repeated(*arguments: Any) -> Any:
        def step(total: Any, factor: Any) -> Any:
            value = loss(program)(arguments[0] * factor, *arguments[1:])
            return total + value, value

        return lax.scan(step, 0.0, jnp.arange(1.0, 3.0))

    return gradient(repeated, arguments)(*arguments)


def forward_over_reverse_inside_scan(program: Program, *arguments: Any) -> Any:
    def step(_: Any, factor: Any) -> Any:
        scaled = (arguments[0] * factor, *arguments[1:])
        return None, jax.jvp(gradient(program, arguments), scaled, directions(arguments))

    return lax.scan(step, None, jnp.arange(1.0, 3.0))


def inside_while(program: Program, *arguments: Any) -> Any:
    def body(state: Any) -> Any:
        count, total = state
        shifted = (arguments[0] + 0.1 * count, *arguments[1:])
        first_gradient = jax.tree.leaves(gradient(program, arguments)(*shifted))[0]
        return count + 1, total + loss(program)(*shifted) + first_gradient.sum()

    return lax.while_loop(lambda s: s[0] < 3, body, (0, 0.0))


def forward_inside_while(program: Program, *arguments: Any) -> Any:
    def run(first: Any) -> Any:
        def body(state: Any) -> Any:
            count, total = state
            return count + 1, total + loss(program)(first + total, *arguments[1:])

        return lax.while_loop(lambda s: s[0] < 3, body, (0, 0.0))[1]

    return jax.jvp(run, arguments[:1], directions(arguments)[:1])


def in_cond(program: Program, limit: float, arguments: Arguments) -> Callable[..., Any]:
    def branch(*arguments: Any) -> Any:
        other = loss(lambda *a: [x * 2 for x in a])
        return lax.cond(arguments[0].ravel()[0] < limit, loss(program), other, *arguments)

    return gradient(branch, arguments)


def inside_custom_vjp(program: Program, *arguments: Any) -> Any:
    total = jax.custom_vjp(loss(program))

    def backward(arguments: Any, ct: Any) -> Any:
        return tuple(ct * g for g in gradient(program, arguments)(*arguments))

    total.defvjp(lambda *arguments: (total(*arguments), arguments), backward)
    return gradient(total, arguments)(*arguments)


def shard_map(program: Program, *arguments: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("i",))
    split, whole = jax.sharding.PartitionSpec("i"), jax.sharding.PartitionSpec()
    many = tuple(jnp.stack([x, 0.5 * x, 1.5 * x, -x]) for x in arguments)

    def local(*arguments: Any) -> Any:
        return lax.psum(loss(program)(*(x[0] for x in arguments)), "i")

    total = jax.shard_map(local, mesh=mesh, in_specs=split, out_specs=whole)
    inside = jax.shard_map(
        lambda *a: jax.vmap(gradient(program, arguments))(*a),
        mesh=mesh,
        in_specs=split,
        out_specs=split,
    )
    return gradient(total, arguments)(*many), inside(*many)


def exported(program: Program, *arguments: Any) -> Any:
    serialized = jax_export.export(jax.jit(gradient(program, arguments)))(*arguments).serialize()
    return jax_export.deserialize(serialized).call(*arguments)


def _compiled(run: Callable[..., Any], program: Program, arguments: Arguments) -> Any:
    return jax.jit(partial(run, program))(*arguments)


def disable_jit(program: Program, arguments: Arguments) -> Any:
    with jax.disable_jit():
        return gradient(program, arguments)(*arguments)


def debug_nans(program: Program, arguments: Arguments) -> Any:
    with jax.debug_nans(True):
        return program(*arguments), gradient(program, arguments)(*arguments)


COMPILED: dict[str, Callable[..., Any]] = {
    "jit": lambda f, *a: f(*a),
    "grad": lambda f, *a: gradient(f, a)(*a),
    "grad_of_first": lambda f, *a: jax.grad(loss(f))(*a),
    "value_and_grad_with_results": value_and_grad_with_results,
    "vjp": vjp,
    "jvp": lambda f, *a: jax.jvp(f, a, directions(a)),
    "linearize": linearize,
    "transposed_linearize": transposed_linearize,
    "jacfwd": lambda f, *a: jax.jacfwd(lambda *a: inexact_leaves(f(*a)))(*a),
    "jacrev": jacrev,
    "hessian": lambda f, *a: jax.hessian(loss(f))(*a),
    "forward_over_reverse": lambda f, *a: jax.jvp(gradient(f, a), a, directions(a)),
    "reverse_over_reverse": lambda f, *a: of_direction(f, a, False)(*a),
    "reverse_over_forward": lambda f, *a: of_direction(f, a, True)(*a),
    "reverse_three_times": lambda f, *a: of_direction(f, a, False, False)(*a),
    "forward_over_reverse_over_reverse": lambda f, *a: directional(
        of_directions(f, a, False, False), a, forward=True
    )(*a),
    "vmap": lambda f, *a: jax.vmap(f)(*batched(a)),
    "vmap_of_first": lambda f, x, *others: jax.vmap(f, (0, *[None] * len(others)))(
        *batched((x,)), *others
    ),
    "vmap_of_last_axis": vmap_of_last_axis,
    "vmap_of_vmap": lambda f, *a: jax.vmap(jax.vmap(f))(*batched(batched(a))),
    "vmap_of_grad": lambda f, *a: jax.vmap(gradient(f, a))(*batched(a)),
    "grad_of_vmap": lambda f, *a: gradient(jax.vmap(f), a)(*batched(a)),
    "vmap_of_reverse_over_reverse": lambda f, *a: jax.vmap(of_direction(f, a, False, of_all=False))(
        *batched(a)
    ),
    "reverse_over_reverse_of_vmap": lambda f, *a: of_direction(
        jax.vmap(f), batched(a), False, of_all=False
    )(*batched(a)),
    "grad_inside_checkpoint": lambda f, *a: gradient(jax.checkpoint(f), a)(*a),
    "reverse_over_reverse_inside_checkpoint": lambda f, *a: of_direction(
        jax.checkpoint(f), a, False, of_all=False
    )(*a),
    "grad_inside_scan": grad_inside_scan,
    "forward_over_reverse_inside_scan": forward_over_reverse_inside_scan,
    "inside_while": inside_while,
    "forward_inside_while": forward_inside_while,
    "inside_cond": lambda f, *a: in_cond(f, 100, a)(*a),
    "inside_batched_cond": lambda f, *a: jax.vmap(in_cond(f, 0.3, a))(*batched(a)),
    "inside_custom_vjp": inside_custom_vjp,
    "shard_map": shard_map,
}
"""Functions of a program and its arguments, which are compiled."""

ALL: dict[str, Callable[[Program, Arguments], Any]] = {
    "evaluate": lambda f, a: f(*a),
    "grad_without_jit": lambda f, a: gradient(f, a)(*a),
    "grad_of_jit": lambda f, a: gradient(jax.jit(f), a)(*a),
    **{name: partial(_compiled, run) for name, run in COMPILED.items()},
    "exported": lambda f, a: exported(f, *a),
    "disable_jit": disable_jit,
    "debug_nans": debug_nans,
}

FORWARD_MODE = {"jvp", "linearize", "jacfwd", "reverse_over_forward", "forward_inside_while"}
"""Those that differentiate the loop itself forwards, which `lax.scan` refuses for `custom_vjp`."""

COMPOUND = {
    "reverse_three_times",
    "forward_over_reverse_over_reverse",
    "reverse_over_reverse_of_vmap",
    "reverse_over_reverse_inside_checkpoint",
    "forward_over_reverse_inside_scan",
}
"""They take long to compile."""
