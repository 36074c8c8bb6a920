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
Transformation = Callable[[Program, Arguments], Any]

ALL: dict[str, Transformation] = {}
FORWARD_MODE: set[str] = set()
"""Those that differentiate the loop itself forwards, which `lax.scan` refuses for `custom_vjp`."""


COMPOUND = {
    "reverse_three_times",
    "forward_over_reverse_over_reverse",
    "reverse_over_reverse_of_vmap",
    "reverse_over_reverse_inside_checkpoint",
    "forward_over_reverse_inside_scan",
}
"""They take long to compile."""


def transformation(function: Transformation | None = None, *, forward_mode: bool = False) -> Any:
    if function is None:
        return partial(transformation, forward_mode=forward_mode)
    name = function.__name__
    ALL[name] = function
    if forward_mode:
        FORWARD_MODE.add(name)
    return function


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


@transformation
def evaluate(program: Program, arguments: Arguments) -> Any:
    return program(*arguments)


@transformation
def jit(program: Program, arguments: Arguments) -> Any:
    return jax.jit(program)(*arguments)


@transformation
def grad(program: Program, arguments: Arguments) -> Any:
    return jax.jit(gradient(program, arguments))(*arguments)


@transformation
def grad_without_jit(program: Program, arguments: Arguments) -> Any:
    return gradient(program, arguments)(*arguments)


@transformation
def grad_of_jit(program: Program, arguments: Arguments) -> Any:
    return gradient(jax.jit(program), arguments)(*arguments)


@transformation
def grad_of_first(program: Program, arguments: Arguments) -> Any:
    return jax.jit(jax.grad(loss(program)))(*arguments)


@transformation
def value_and_grad_with_results(program: Program, arguments: Arguments) -> Any:
    def both(*arguments: Any) -> Any:
        results = program(*arguments)
        return loss(lambda: results)(), results

    return jax.jit(jax.value_and_grad(both, has_aux=True))(*arguments)


@transformation
def vjp(program: Program, arguments: Arguments) -> Any:
    def pull_back(*arguments: Any) -> Any:
        parts, pullback = jax.vjp(lambda *a: inexact_leaves(program(*a)), *arguments)
        return parts, pullback([jnp.ones_like(x) for x in parts])

    return jax.jit(pull_back)(*arguments)


@transformation(forward_mode=True)
def jvp(program: Program, arguments: Arguments) -> Any:
    return jax.jit(partial(jax.jvp, program))(arguments, directions(arguments))


@transformation(forward_mode=True)
def linearize(program: Program, arguments: Arguments) -> Any:
    def run(*arguments: Any) -> Any:
        parts, push = jax.linearize(lambda *a: inexact_leaves(program(*a)), *arguments)
        return parts, push(*directions(arguments)), jax.vmap(push)(*batched(directions(arguments)))

    return jax.jit(run)(*arguments)


@transformation
def transposed_linearize(program: Program, arguments: Arguments) -> Any:
    def run(*arguments: Any) -> Any:
        value, push = jax.linearize(loss(program), *arguments)
        return jax.linear_transpose(push, *arguments)(jnp.ones_like(value))

    return jax.jit(run)(*arguments)


@transformation(forward_mode=True)
def jacfwd(program: Program, arguments: Arguments) -> Any:
    return jax.jit(jax.jacfwd(lambda *a: inexact_leaves(program(*a))))(*arguments)


@transformation
def jacrev(program: Program, arguments: Arguments) -> Any:
    def real_leaves(*arguments: Any) -> Any:
        return [jnp.real(x).astype(float) for x in inexact_leaves(program(*arguments))]

    return jax.jit(jax.jacrev(real_leaves))(*arguments)


@transformation
def hessian(program: Program, arguments: Arguments) -> Any:
    return jax.jit(jax.hessian(loss(program)))(*arguments)


@transformation
def forward_over_reverse(program: Program, arguments: Arguments) -> Any:
    gradient_ = gradient(program, arguments)
    return jax.jit(lambda *a: jax.jvp(gradient_, a, directions(a)))(*arguments)


@transformation
def reverse_over_reverse(program: Program, arguments: Arguments) -> Any:
    once = directional(loss(program), arguments, forward=False)
    return jax.jit(jax.grad(once, tuple(range(len(arguments)))))(*arguments)


@transformation(forward_mode=True)
def reverse_over_forward(program: Program, arguments: Arguments) -> Any:
    once = directional(loss(program), arguments, forward=True)
    return jax.jit(jax.grad(once, tuple(range(len(arguments)))))(*arguments)


@transformation
def reverse_three_times(program: Program, arguments: Arguments) -> Any:
    once = directional(loss(program), arguments, forward=False)
    twice = directional(once, arguments, forward=False)
    return jax.jit(jax.grad(twice, tuple(range(len(arguments)))))(*arguments)


@transformation
def forward_over_reverse_over_reverse(program: Program, arguments: Arguments) -> Any:
    once = directional(loss(program), arguments, forward=False)
    twice = directional(once, arguments, forward=False)
    return jax.jit(directional(twice, arguments, forward=True))(*arguments)


@transformation
def vmap(program: Program, arguments: Arguments) -> Any:
    return jax.jit(jax.vmap(program))(*batched(arguments))


@transformation
def vmap_of_first(program: Program, arguments: Arguments) -> Any:
    first, *others = arguments
    in_axes = (0, *[None] * len(others))
    return jax.jit(jax.vmap(program, in_axes))(*batched((first,)), *others)


@transformation
def vmap_of_last_axis(program: Program, arguments: Arguments) -> Any:
    *others, last = arguments
    in_axes = (*[None] * len(others), last.ndim)
    run = jax.vmap(program, in_axes, out_axes=-1)
    return jax.jit(run)(*others, *batched((last,), axis=last.ndim))


@transformation
def vmap_of_vmap(program: Program, arguments: Arguments) -> Any:
    return jax.jit(jax.vmap(jax.vmap(program)))(*batched(batched(arguments)))


@transformation
def vmap_of_grad(program: Program, arguments: Arguments) -> Any:
    return jax.jit(jax.vmap(gradient(program, arguments)))(*batched(arguments))


@transformation
def grad_of_vmap(program: Program, arguments: Arguments) -> Any:
    return jax.jit(gradient(jax.vmap(program), arguments))(*batched(arguments))


@transformation
def vmap_of_reverse_over_reverse(program: Program, arguments: Arguments) -> Any:
    return jax.jit(jax.vmap(jax.grad(directional(loss(program), arguments, forward=False))))(
        *batched(arguments)
    )


@transformation
def reverse_over_reverse_of_vmap(program: Program, arguments: Arguments) -> Any:
    many = batched(arguments)
    once = directional(loss(jax.vmap(program)), many, forward=False)
    return jax.jit(jax.grad(once))(*many)


@transformation
def grad_inside_checkpoint(program: Program, arguments: Arguments) -> Any:
    return jax.jit(gradient(jax.checkpoint(program), arguments))(*arguments)


@transformation
def reverse_over_reverse_inside_checkpoint(program: Program, arguments: Arguments) -> Any:
    once = directional(loss(jax.checkpoint(program)), arguments, forward=False)
    return jax.jit(jax.grad(once))(*arguments)


@transformation
def grad_inside_scan(program: Program, arguments: Arguments) -> Any:
    def repeated(*arguments: Any) -> Any:
        def step(total: Any, factor: Any) -> Any:
            value = loss(program)(arguments[0] * factor, *arguments[1:])
            return total + value, value

        return lax.scan(step, 0.0, jnp.arange(1.0, 3.0))

    return jax.jit(gradient(repeated, arguments))(*arguments)


@transformation
def forward_over_reverse_inside_scan(program: Program, arguments: Arguments) -> Any:
    def step(_: Any, factor: Any) -> Any:
        scaled = (arguments[0] * factor, *arguments[1:])
        return None, jax.jvp(gradient(program, arguments), scaled, directions(arguments))

    return jax.jit(lambda: lax.scan(step, None, jnp.arange(1.0, 3.0)))()


@transformation
def inside_while(program: Program, arguments: Arguments) -> Any:
    def body(state: Any) -> Any:
        count, total = state
        shifted = (arguments[0] + 0.1 * count, *arguments[1:])
        first_gradient = jax.tree.leaves(gradient(program, arguments)(*shifted))[0]
        return count + 1, total + loss(program)(*shifted) + first_gradient.sum()

    return jax.jit(lambda: lax.while_loop(lambda s: s[0] < 3, body, (0, 0.0)))()


@transformation(forward_mode=True)
def forward_inside_while(program: Program, arguments: Arguments) -> Any:
    def run(first: Any) -> Any:
        def body(state: Any) -> Any:
            count, total = state
            return count + 1, total + loss(program)(first + total, *arguments[1:])

        return lax.while_loop(lambda s: s[0] < 3, body, (0, 0.0))[1]

    return jax.jit(partial(jax.jvp, run))(arguments[:1], directions(arguments)[:1])


@transformation
def inside_cond(program: Program, arguments: Arguments) -> Any:
    def branch(*arguments: Any) -> Any:
        value = arguments[0].ravel()[0]
        other = loss(lambda *a: [x * 2 for x in a])
        return lax.cond(value < 100, loss(program), other, *arguments)

    return jax.jit(gradient(branch, arguments))(*arguments)


@transformation
def inside_batched_cond(program: Program, arguments: Arguments) -> Any:
    def branch(*arguments: Any) -> Any:
        value = arguments[0].ravel()[0]
        other = loss(lambda *a: [x * 2 for x in a])
        return lax.cond(value < 0.3, loss(program), other, *arguments)

    return jax.jit(jax.vmap(gradient(branch, arguments)))(*batched(arguments))


@transformation
def inside_custom_vjp(program: Program, arguments: Arguments) -> Any:
    @jax.custom_vjp
    def total(*arguments: Any) -> Any:
        return loss(program)(*arguments)

    def forward(*arguments: Any) -> Any:
        return total(*arguments), arguments

    def backward(arguments: Any, ct: Any) -> Any:
        return tuple(ct * g for g in gradient(program, arguments)(*arguments))

    total.defvjp(forward, backward)
    return jax.jit(gradient(total, arguments))(*arguments)


@transformation
def shard_map(program: Program, arguments: Arguments) -> Any:
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
    return jax.jit(gradient(total, arguments))(*many), jax.jit(inside)(*many)


@transformation
def exported(program: Program, arguments: Arguments) -> Any:
    serialized = jax_export.export(jax.jit(gradient(program, arguments)))(*arguments).serialize()
    restored = jax_export.deserialize(serialized)
    return restored.call(*arguments)


@transformation
def disable_jit(program: Program, arguments: Arguments) -> Any:
    with jax.disable_jit():
        return gradient(program, arguments)(*arguments)


@transformation
def debug_nans(program: Program, arguments: Arguments) -> Any:
    with jax.debug_nans(True):
        return program(*arguments), gradient(program, arguments)(*arguments)
