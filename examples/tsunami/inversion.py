"""From gauge records back to the sea surface that caused them."""

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

PATCH = 8e3  # m, distance over which the unknown surface is taken to be smooth
HEIGHT = 1.0  # m, how high the unknown surface is taken to stand, give or take


@dataclass(frozen=True)
class Smoothness:
    """Turns independent numbers, one per cell, into a smooth surface on the sea.

    Independent numbers of unit variance become heights (m) with standard deviation `HEIGHT` that
    vary over the distance `PATCH`. Asking for small numbers then asks for a smooth surface.
    """

    sea: jax.Array
    rows: jax.Array
    columns: jax.Array

    def __call__(self, parameters: jax.Array) -> jax.Array:
        return self.sea * (self.rows @ parameters @ self.columns)


def smoothness(bathymetry: Bathymetry, dtype: DTypeLike = np.float32) -> Smoothness:
    """The smoothing that suits a grid."""
    width = float(np.mean(bathymetry.cell_width))
    rows = _blur(len(bathymetry.latitude), PATCH / bathymetry.cell_height)
    columns = _blur(len(bathymetry.longitude), PATCH / width)
    return Smoothness(
        sea=jnp.asarray(HEIGHT * bathymetry.sea, dtype),
        rows=jnp.asarray(rows, dtype),
        columns=jnp.asarray(columns.T, dtype),
    )


def _blur(size: int, cells: float) -> Array:
    """Matrix that blurs with a Gaussian `cells` wide and keeps the variance of white noise."""
    distance = np.subtract.outer(np.arange(size), np.arange(size)) / cells
    weight = np.exp(-0.5 * distance**2)
    return weight / np.sqrt(np.sum(weight**2, axis=1, keepdims=True))


@dataclass(frozen=True)
class Problem:
    """Find the surface from the gauges.

    - `gauges`: row and column of each.
    - `length`: number of time steps.
    - `observed`: readings in metres, shape `(length, gauges)`.
    - `noise`: standard deviation of a reading, in metres.
    - `scan`: what runs the time loop, `jax.lax.scan` or something called the same way.
    """

    ocean: Ocean
    smoothness: Smoothness
    gauges: tuple[tuple[int, int], ...]
    length: int
    observed: jax.Array
    noise: float
    scan: Scan

    def traces(self, parameters: jax.Array) -> jax.Array:
        """Gauge heights, in metres, that the surface made from `parameters` would cause."""
        surface = self.smoothness(parameters)
        return simulate(self.ocean, surface, self.length, self.gauges, self.scan)[1]

    def misfit(self, parameters: jax.Array) -> jax.Array:
        """Mean squared error in units of the noise, plus the mean cost of an unlikely surface."""
        error = (self.traces(parameters) - self.observed) / self.noise
        return (jnp.sum(error**2) + jnp.sum(parameters**2)) / self.observed.size

    def compiled_gradient(self) -> jax.stages.Compiled:
        """The program that maps parameters to the misfit and its gradient, compiled but not run."""
        return jax.jit(jax.value_and_grad(self.misfit)).lower(self.no_guess()).compile()

    def no_guess(self) -> jax.Array:
        """Parameters of still water, where the search starts."""
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
    """A problem whose readings come from the model itself, run from `source`, with noise added.

    This is easier than real life, where the model is wrong too. In exchange the answer is known.
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
    """Parameters of the best surface that L-BFGS finds, beginning at `start`.

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
