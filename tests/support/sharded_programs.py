"""One program, written for every way in which JAX runs a program on several devices.

It multiplies by a weight, adds an input, and looks at all of the carry: a step for which devices
have to talk to each other. Eight devices are a mesh of four by two.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_revolve import bounded_while_loop, checkpointed_scan

Program = Callable[..., Any]
"""Weight, initial carry and xs to a number."""

Scan = Callable[..., Any]
SIZES = {"data": 4, "model": 2}
CARRY = P("data", "model")
_WHOLE = (P("model", None), CARRY, P(None, *CARRY))
_ROWS = (P(), P("data"), P(None, "data"))
AUTO, EXPLICIT = (
    Mesh(np.array(jax.devices()[:8]).reshape(4, 2), tuple(SIZES), axis_types=(kind,) * 2)
    for kind in (AxisType.Auto, AxisType.Explicit)
)


def arrays(steps: int = 8, batch: int = 8, width: int = 4) -> tuple[Any, ...]:
    """Weight, initial carry and xs."""
    shapes = [(width, width), (batch, width), (steps, batch, width)]
    draw = np.random.default_rng(0).normal
    return tuple(jnp.asarray(draw(size=shape) / 2, float) for shape in shapes)


class Step(NamedTuple):
    """How the step is written: a product with the weight and an input, both laid out as the carry,
    and a sum over everything."""

    product: Callable[[Any, Any], Any] = jnp.matmul
    laid_out: Callable[[Any], Any] = lambda x: x
    total: Callable[[Any], Any] = jnp.sum


def program(scan: Scan, parts: Step = Step()) -> Program:  # noqa: B008
    def loss(w: Any, h: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            x = parts.laid_out(x)
            h = jnp.tanh(parts.product(h, w) + x)
            h = h * (1 + 0.1 * jnp.sin(parts.total(h)))
            return h, h * x

        h, ys = scan(step, h, xs)
        return parts.total(h**2) + parts.total(jnp.sin(ys))

    return loss


def as_while(**options: Any) -> Scan:
    """The scan as a while loop that reads xs, and writes ys over a copy of them."""

    def run(step: Any, init: Any, xs: Any) -> Any:
        steps = len(xs)

        def body(state: Any) -> Any:
            i, carry, ys = state
            carry, y = step(carry, lax.dynamic_index_in_dim(xs, i, keepdims=False))
            return i + 1, carry, lax.dynamic_update_index_in_dim(ys, y, i, 0)

        go_on = lambda state: state[0] < steps  # noqa: E731
        state = (jnp.int32(0), init, xs)
        mesh = jax.sharding.get_abstract_mesh()
        # JAX cannot call Python, as an error does, where only some axes are mapped.
        throw = mesh.manual_axes in ((), mesh.axis_names)
        bound = {"max_steps": steps + 3, "throw": throw}
        return bounded_while_loop(go_on, body, state, **bound, **options)[1:]

    return run


LOOPS: dict[str, Scan] = {
    "scan": partial(checkpointed_scan, checkpoints=2),
    "blocks": partial(checkpointed_scan, checkpoints=2, block_size=2),
    "while": as_while(checkpoints=2),
    "while_in_blocks": as_while(checkpoints=2, block_size=2),
}


class Setting(NamedTuple):
    """A way to run the program: with whole arrays in, whatever happens inside. `specs` tell where
    weight, initial carry and xs are put beforehand, `None` that they stay where they are, `on` is
    their mesh."""

    program: Callable[[Scan], Program]
    specs: tuple[P, ...] | None = _WHOLE
    on: Mesh = AUTO
    is_set: bool = False

    def put(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.specs is None:
            return arrays
        pairs = zip(arrays, self.specs, strict=True)
        return tuple(jax.device_put(x, NamedSharding(self.on, spec)) for x, spec in pairs)

    def mesh_set(self) -> Any:
        return jax.set_mesh(self.on) if self.is_set else nullcontext()


def _explicit(scan: Scan) -> Program:
    def product(h: Any, w: Any) -> Any:
        # Two changes of the layout: what is multiplied, and there and back again.
        h = jax.sharding.reshard(h, P("data", None))
        turned = jnp.matmul(h, w, out_sharding=P("model", "data"))
        return jax.sharding.reshard(turned, CARRY)

    return program(scan, Step(product))


def _shard_map(scan: Scan) -> Program:
    """Each device has a part of the carry and a few rows of the weight."""

    def product(h: Any, w: Any) -> Any:
        return lax.psum_scatter(h @ w, "model", scatter_dimension=1, tiled=True)

    local = program(scan, Step(product, total=lambda x: lax.psum(jnp.sum(x), tuple(SIZES))))
    return jax.shard_map(local, mesh=AUTO, in_specs=_WHOLE, out_specs=P())


def _shard_map_over_one_axis(scan: Scan) -> Program:
    """The other axis is left to the compiler."""
    local = program(scan, Step(total=lambda x: lax.psum(jnp.sum(x), "data")))
    return jax.shard_map(local, mesh=AUTO, in_specs=_ROWS, out_specs=P(), axis_names={"data"})


def _one(scan: Scan, **more: Any) -> Program:
    """Of a row of the carry."""
    return program(scan, Step(total=lambda x: lax.psum(jnp.sum(x), "i"), **more))


def _pmap(scan: Scan) -> Program:
    """A device for each row."""
    every = jax.pmap(_one(scan), axis_name="i", in_axes=(None, 0, 1))
    return lambda *arrays: jnp.mean(every(*arrays))


def _vmap_over_devices(scan: Scan) -> Program:
    """The examples are divided over the devices, and each of them over some."""
    sharding = NamedSharding(AUTO, P("model"))
    one = _one(scan, laid_out=lambda x: lax.with_sharding_constraint(x, sharding))
    axes = {"in_axes": (None, 0, 1), "axis_name": "i", "spmd_axis_name": "data"}
    return lambda *arrays: jnp.mean(jax.vmap(one, **axes)(*arrays))


SETTINGS = {
    "auto": Setting(program),
    "constrained": Setting(
        partial(program, parts=Step(laid_out=lambda x: lax.with_sharding_constraint(x, CARRY))),
        (P(), P(), P()),
        is_set=True,
    ),
    "explicit": Setting(_explicit, (P(), *_WHOLE[1:]), EXPLICIT, is_set=True),
    "shard_map": Setting(_shard_map),
    "shard_map_over_one_axis": Setting(_shard_map_over_one_axis, _ROWS),
    "vmap_over_devices": Setting(_vmap_over_devices, _ROWS),
    # `jax.pmap` has a mesh of its own, and no program that calls Python has two.
    "pmap": Setting(_pmap, None),
}


def derivatives(loss: Program) -> dict[str, Program]:
    """With respect to weight, initial carry and xs."""
    gradient = jax.grad(loss, (0, 1, 2))

    def along(fun: Program) -> Program:
        return lambda *arrays: jax.jvp(fun, arrays, tuple(map(jnp.cos, arrays)))

    def of_gradient(*arrays: Any) -> Any:
        return sum(jnp.sum(jnp.sin(part)) for part in gradient(*arrays))

    return {
        "grad": gradient,
        "jvp": along(loss),
        "forward_over_reverse": along(gradient),
        "reverse_over_reverse": jax.grad(of_gradient, (0, 1, 2)),
    }
