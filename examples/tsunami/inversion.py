"""Find the initial sea surface from gauge records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from scipy import optimize

from .bathymetry import Array, Bathymetry
from .model import Ocean, Scan, prepare, simulate

PATCH = 8e3  # m, assumed length scale of the unknown surface
HEIGHT = 1.0  # m, assumed standard deviation of the unknown surface


@dataclass(frozen=True)
class Smoothness:
    """Maps independent numbers, one per cell, to a smooth surface on the sea.

    Independent numbers of unit variance become heights (m) with standard deviation `HEIGHT` that
    vary over the distance `PATCH`. So a penalty on large numbers is a penalty on rough surfaces.
    """

    sea: jax.Array
    rows: jax.Array
    columns: jax.Array

    def __call__(self, parameters: jax.Array) -> jax.Array:
        return self.sea * (self.rows @ parameters @ self.columns)


def smoothness(bathymetry: Bathymetry, dtype: DTypeLike = np.float32) -> Smoothness:
    """The smoothing for a grid."""
    width = float(np.mean(bathymetry.cell_width))
    rows = _blur(len(bathymetry.latitude), PATCH / bathymetry.cell_height)
    columns = _blur(len(bathymetry.longitude), PATCH / width)
    return Smoothness(
        sea=jnp.asarray(HEIGHT * bathymetry.sea, dtype),
        rows=jnp.asarray(rows, dtype),
        columns=jnp.asarray(columns.T, dtype),
    )


def _blur(size: int, cells: float) -> Array:
    """Matrix of a Gaussian blur, `cells` wide, that preserves the variance of white noise."""
    distance = np.subtract.outer(np.arange(size), np.arange(size)) / cells
    weight = np.exp(-0.5 * distance**2)
    return weight / np.sqrt(np.sum(weight**2, axis=1, keepdims=True))


@dataclass(frozen=True)
class Problem:
    """The inverse problem: find the initial surface from the gauges.

    - `gauges`: row and column of each.
    - `length`: number of time steps.
    - `observed`: readings in meters, shape `(length, gauges)`.
    - `noise`: standard deviation of a reading, in meters.
    - `scan`: the time loop, `jax.lax.scan` or a function with the same arguments.
    """

    ocean: Ocean
    smoothness: Smoothness
    gauges: tuple[tuple[int, int], ...]
    length: int
    observed: jax.Array
    noise: float
    scan: Scan

    def traces(self, parameters: jax.Array) -> jax.Array:
        """Gauge heights, in meters, for the surface of `parameters`."""
        surface = self.smoothness(parameters)
        return simulate(self.ocean, surface, self.length, self.gauges, self.scan)[1]

    def misfit(self, parameters: jax.Array) -> jax.Array:
        """Squared errors in units of the noise plus squared parameters, per reading."""
        error = (self.traces(parameters) - self.observed) / self.noise
        return (jnp.sum(error**2) + jnp.sum(parameters**2)) / self.observed.size

    def compiled_gradient(self) -> jax.stages.Compiled:
        """The compiled program that maps parameters to the misfit and its gradient."""
        return jax.jit(jax.value_and_grad(self.misfit)).lower(self.no_guess()).compile()

    def no_guess(self) -> jax.Array:
        """Parameters of still water, the start of the search."""
        return jnp.zeros_like(self.smoothness.sea)


def twin_problem(
    bathymetry: Bathymetry,
    source: Array,
    gauges: tuple[tuple[int, int], ...],
    length: int,
    noise: float,
    scan: Scan,
    dtype: DTypeLike = np.float32,
) -> Problem:
    """A problem whose readings are simulated by the same model from `source`, with added noise.

    The true source is known. Real readings are harder, because the model has errors, too.
    """
    ocean = prepare(bathymetry, dtype=dtype)
    run = jax.jit(lambda surface: simulate(ocean, surface, length, gauges)[1])
    readings = np.array(run(jnp.asarray(source, dtype)), np.float64)
    readings += noise * np.random.default_rng(2024).standard_normal(readings.shape)
    observed = jnp.asarray(readings, dtype)
    return Problem(ocean, smoothness(bathymetry, dtype), gauges, length, observed, noise, scan)


def recover(
    program: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    start: jax.Array,
    iterations: int,
    progress: Callable[[float], None] = lambda misfit: None,
) -> jax.Array:
    """Parameters of the best surface that L-BFGS finds from `start`.

    `program` maps parameters to the misfit and its gradient; `progress` is called with the misfit
    after each iteration.
    """

    def evaluate(flat: Array) -> tuple[float, Array]:
        value, gradient = program(jnp.asarray(flat.reshape(start.shape), start.dtype))
        return float(value), np.asarray(gradient, np.float64).ravel()

    def note(intermediate_result: optimize.OptimizeResult) -> None:
        progress(float(intermediate_result.fun))

    found = optimize.minimize(
        evaluate,
        np.asarray(start, np.float64).ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=note,
        options={"maxiter": iterations, "maxcor": 20, "ftol": 0.0, "gtol": 0.0},
    )
    return jnp.asarray(found.x.reshape(start.shape), start.dtype)
