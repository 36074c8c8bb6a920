"""Long waves over a sea floor: the linear shallow-water equations with bottom drag.

```text
d(surface)/dt  = -div(depth * velocity)
d(velocity)/dt = -gravity * grad(surface) - drag * |velocity| * velocity / depth
```

The surface is at cell centers and the flow on the faces between cells (an Arakawa C grid). A step
updates the flow with the old surface and then the surface with the new flow, which conserves an
energy exactly if nothing dissipates it. The flow is the volume that crosses a face each second, so
water is conserved by construction. A face without depth is a wall that reflects waves.

The drag makes the equations nonlinear. Without it, the derivative of a step does not depend on the
state, and the reverse pass needs no stored states. The drag on each flow component depends only on
that component, which is cheaper than the whole velocity. It slows the water and never accelerates
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .bathymetry import Array, Bathymetry

GRAVITY = 9.81  # m/s^2
WATER_DENSITY = 1025.0  # kg/m^3
DRAG = 0.0025  # drag coefficient of the sea floor, no unit
COURANT = 0.8  # time step as a fraction of the largest stable one

Scan = Callable[..., Any]


class State(NamedTuple):
    """The sea at one time.

    - `surface`: height above still water at cell centers, meters.
    - `eastward`: flow through the faces between columns, cubic meters per second.
    - `northward`: flow through the faces between rows, cubic meters per second.
    """

    surface: jax.Array
    eastward: jax.Array
    northward: jax.Array


class Faces(NamedTuple):
    """The coefficients of a step for one family of faces.

    - `push`: increase of flow in a step per meter of surface difference, m^2/s.
    - `drag`: relative loss of flow in a step per unit of flow, s/m^3.
    """

    push: jax.Array
    drag: jax.Array


class Ocean(NamedTuple):
    """A sea floor prepared for stepping.

    - `time_step`: seconds.
    - `area`: of the cells, square meters.
    - `keep`: fraction of the surface height that remains after a step; below 1 where waves leave.
    - `fill`: meters of surface per cubic meter per second of inflow in one step.
    - `eastward`, `northward`: the two families of faces.
    """

    time_step: float | jax.Array
    area: jax.Array
    keep: jax.Array
    fill: jax.Array
    eastward: Faces
    northward: Faces


def stable_time_step(bathymetry: Bathymetry) -> float:
    """Seconds per step: a fixed fraction of the least stability limit of all cells."""
    speed = np.sqrt(GRAVITY * bathymetry.depth)
    width, height = bathymetry.cell_width[:, None], bathymetry.cell_height
    return COURANT / float(np.max(speed * np.hypot(1.0 / width, 1.0 / height)))


def prepare(
    bathymetry: Bathymetry,
    *,
    drag: float = DRAG,
    open_edges: bool = True,
    dtype: DTypeLike = np.float32,
) -> Ocean:
    """Compute the coefficients of one time step from a sea floor.

    With `open_edges`, waves leave through the rim of the grid; without, the rim is a wall.
    """
    time_step = stable_time_step(bathymetry)
    width, height = bathymetry.cell_width[:, None], bathymetry.cell_height
    area = width * height * np.ones_like(bathymetry.depth)
    loss = 0.5 * time_step * (absorption(bathymetry) if open_edges else np.zeros_like(area))
    row_face = 0.5 * (bathymetry.latitude[1:] + bathymetry.latitude[:-1])
    depth = bathymetry.depth
    faces = partial(_faces, time_step=time_step, drag=drag, dtype=dtype)
    return Ocean(
        time_step=time_step,
        area=jnp.asarray(area, dtype),
        keep=jnp.asarray((1.0 - loss) / (1.0 + loss), dtype),
        fill=jnp.asarray(time_step / area / (1.0 + loss), dtype),
        eastward=faces(depth[:, 1:], depth[:, :-1], length=height, distance=width),
        northward=faces(
            depth[1:], depth[:-1], length=bathymetry.width_at(row_face)[:, None], distance=height
        ),
    )


def _faces(
    one_side: Array,
    other_side: Array,
    *,
    length: float | Array,
    distance: float | Array,
    time_step: float,
    drag: float,
    dtype: DTypeLike,
) -> Faces:
    """Coefficients of the faces between cells of the given depths, all in meters and seconds."""
    wet = (one_side > 0.0) & (other_side > 0.0)
    depth = np.where(wet, 0.5 * (one_side + other_side), 0.0)
    push = time_step * GRAVITY * depth * length / distance
    cross_section = np.where(wet, depth, 1.0) * length
    loss = np.where(wet, time_step * drag / (np.where(wet, depth, 1.0) * cross_section), 0.0)
    return Faces(jnp.asarray(push, dtype), jnp.asarray(loss, dtype))


def absorption(bathymetry: Bathymetry) -> Array:
    """Rate of decay, per second, of the surface height in the cells on the rim.

    A wave that leaves at speed `c` carries `c * surface` out of its cell, so the cell loses
    height at the rate `c / size`: the radiation condition, written as a decay.
    """
    speed = np.sqrt(GRAVITY * bathymetry.depth)
    rate = np.zeros_like(speed)
    rate[:, [0, -1]] += speed[:, [0, -1]] / bathymetry.cell_width[:, None]
    rate[[0, -1], :] += speed[[0, -1], :] / bathymetry.cell_height
    return rate


def at_rest(surface: jax.Array) -> State:
    """The state with this surface and no flow."""
    rows, columns = surface.shape
    return State(
        surface,
        jnp.zeros((rows, columns - 1), surface.dtype),
        jnp.zeros((rows - 1, columns), surface.dtype),
    )


def step(ocean: Ocean, state: State) -> State:
    """The sea one time step later."""
    surface = state.surface
    eastward = _accelerate(state.eastward, surface[:, 1:] - surface[:, :-1], ocean.eastward)
    northward = _accelerate(state.northward, surface[1:] - surface[:-1], ocean.northward)
    surface = ocean.keep * surface - ocean.fill * _outflow(eastward, northward)
    return State(surface, eastward, northward)


def _accelerate(flow: jax.Array, rise: jax.Array, faces: Faces) -> jax.Array:
    """Apply gravity to the flow, then the drag (exactly over one step)."""
    pushed = flow - faces.push * rise
    return pushed / (1.0 + faces.drag * jnp.abs(pushed))


def _outflow(eastward: jax.Array, northward: jax.Array) -> jax.Array:
    """Net flow out of every cell, cubic meters per second; nothing crosses the outer rim."""
    through_columns = jnp.pad(eastward, ((0, 0), (0, 1))) - jnp.pad(eastward, ((0, 0), (1, 0)))
    through_rows = jnp.pad(northward, ((0, 1), (0, 0))) - jnp.pad(northward, ((1, 0), (0, 0)))
    return through_columns + through_rows


def simulate(
    ocean: Ocean,
    surface: jax.Array,
    length: int,
    gauges: tuple[tuple[int, int], ...],
    scan: Scan = jax.lax.scan,
) -> tuple[State, jax.Array]:
    """Run `length` steps from `surface` at rest, and record the gauges.

    Returns the last state and the surface height at each gauge after each step, in meters,
    shape `(length, gauges)`. `scan` is `jax.lax.scan` or a function with the same arguments.
    """
    rows = np.array([row for row, _ in gauges], np.int32)
    columns = np.array([column for _, column in gauges], np.int32)

    def advance(state: State, _: None) -> tuple[State, jax.Array]:
        later = step(ocean, state)
        return later, later.surface[rows, columns]

    return scan(advance, at_rest(surface), None, length=length)


def energy(ocean: Ocean, state: State) -> jax.Array:
    """Energy of the waves, in joules, in the form that the undamped scheme conserves exactly.

    The flow is half a step behind the surface, so the kinetic energy is a product of the flows half
    a step before and half a step after.
    """
    surface = state.surface
    potential = jnp.sum(ocean.area * surface**2)
    kinetic = _kinetic(state.eastward, surface[:, 1:] - surface[:, :-1], ocean.eastward)
    kinetic += _kinetic(state.northward, surface[1:] - surface[:-1], ocean.northward)
    return 0.5 * WATER_DENSITY * (GRAVITY * potential + GRAVITY * ocean.time_step * kinetic)


def _kinetic(before: jax.Array, rise: jax.Array, faces: Faces) -> jax.Array:
    """Sum of flow before times flow after, weighted by the inertia of each face."""
    after = before - faces.push * rise
    inertia = jnp.where(faces.push > 0.0, 1.0 / jnp.where(faces.push > 0.0, faces.push, 1.0), 0.0)
    return jnp.sum(inertia * before * after)
