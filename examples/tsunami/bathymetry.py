"""The shape of the sea floor: a grid of depths with its cell sizes in meters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Array: TypeAlias = NDArray[np.floating]

EARTH_RADIUS = 6_371_000.0  # m
SHALLOWEST = 10.0  # m; the data gives 1 m for narrow waters of unknown depth


@dataclass(frozen=True)
class Bathymetry:
    """Depths at the centers of a longitude-latitude grid; row 0 is the southernmost.

    - `longitude`: degrees east, one per column, evenly spaced.
    - `latitude`: degrees north, one per row, evenly spaced.
    - `depth`: meters of water, zero on land, shape `(rows, columns)`.
    """

    longitude: Array
    latitude: Array
    depth: Array

    @property
    def sea(self) -> NDArray[np.bool_]:
        """True where a cell has water."""
        return self.depth > 0.0

    @property
    def cell_height(self) -> float:
        """South-north size of every cell, in meters."""
        spacing = float(self.latitude[1] - self.latitude[0])
        return EARTH_RADIUS * float(np.deg2rad(spacing))

    @property
    def cell_width(self) -> Array:
        """West-east size of the cells of each row, in meters; it shrinks toward the pole."""
        return self.width_at(self.latitude)

    def width_at(self, latitude: Array) -> Array:
        """West-east size of a cell, in meters, at the given latitudes (degrees north)."""
        spacing = float(self.longitude[1] - self.longitude[0])
        return EARTH_RADIUS * np.deg2rad(spacing) * np.cos(np.deg2rad(latitude))

    def nearest_sea(self, longitude: float, latitude: float) -> tuple[int, int]:
        """Row and column of the sea cell nearest to a position in degrees."""
        east = (self.longitude - longitude) * np.cos(np.deg2rad(latitude))
        north = self.latitude - latitude
        distance = np.where(self.sea, np.hypot(*np.meshgrid(east, north)), np.inf)
        row, column = np.unravel_index(np.argmin(distance), distance.shape)
        return int(row), int(column)


def salish_sea(refinement: int = 2) -> Bathymetry:
    """The Salish Sea and Vancouver Island, from a sample file of Matplotlib.

    The file contains 91 by 120 heights, about 2.4 km apart. Linear interpolation makes the grid
    `refinement` times as fine.
    """
    longitude, latitude, height = _matplotlib_sample()
    wet = _refine(np.where(height < 0.0, 1.0, 0.0), refinement) >= 0.5
    depth = _refine(np.maximum(-height, SHALLOWEST), refinement)
    rows, columns = depth.shape
    return Bathymetry(
        longitude=np.linspace(longitude[0], longitude[-1], columns),
        latitude=np.linspace(latitude[0], latitude[-1], rows),
        depth=np.where(_largest_body(wet), depth, 0.0),
    )


def _refine(values: Array, refinement: int) -> Array:
    """Linear interpolation to a grid `refinement` times as fine."""
    row, column = (np.linspace(0, size - 1, (size - 1) * refinement + 1) for size in values.shape)
    return ndimage.map_coordinates(values, np.meshgrid(row, column, indexing="ij"), order=1)


def _largest_body(wet: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The largest connected region: no wave reaches separate lakes and pits."""
    labelled: Any = ndimage.label(wet)
    body = labelled[0]
    size = np.bincount(body.ravel())
    size[0] = 0
    return wet & (body == np.argmax(size))


def flat_basin(rows: int, columns: int, depth: float = 100.0, spacing: float = 0.02) -> Bathymetry:
    """A rectangular basin on the equator: `depth` in meters, `spacing` in degrees."""
    return Bathymetry(
        longitude=spacing * np.arange(columns),
        latitude=spacing * (np.arange(rows) - (rows - 1) / 2),
        depth=np.full((rows, columns), depth),
    )


def _matplotlib_sample() -> tuple[Array, Array, Array]:
    """Longitude and latitude (degrees) and height (m) of Matplotlib's `topobathy.npz`."""
    from matplotlib.cbook import get_sample_data

    with np.load(get_sample_data("topobathy.npz", asfileobj=False)) as sample:
        longitude = np.asarray(sample["longitude"], np.float64) - 360.0
        latitude = np.asarray(sample["latitude"], np.float64)
        return longitude, latitude, np.asarray(sample["topo"], np.float64)
