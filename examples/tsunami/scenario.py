"""The scenario: a synthetic source and the tide gauges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .bathymetry import EARTH_RADIUS, Array, Bathymetry

NOISE = 0.02  # m, standard deviation of every gauge reading
STRIKE = 140.0  # degrees clockwise from north: the direction of the continental margin


class Gauge(NamedTuple):
    """A tide gauge: `longitude` in degrees east and `latitude` in degrees north."""

    name: str
    longitude: float
    latitude: float


GAUGES = (
    Gauge("Clayoquot Slope", -125.80, 48.62),
    Gauge("Amphitrite Bank", -125.62, 48.82),
    Gauge("Nitinat Canyon", -125.72, 48.18),
    Gauge("Juan de Fuca Canyon", -125.15, 48.12),
    Gauge("Swiftsure Bank", -124.95, 48.52),
    Gauge("La Perouse Bank", -125.35, 48.68),
    Gauge("Bamfield", -125.14, 48.81),
    Gauge("Port Renfrew", -124.44, 48.53),
    Gauge("Neah Bay", -124.62, 48.39),
    Gauge("Port Angeles", -123.43, 48.14),
    Gauge("Victoria", -123.37, 48.40),
    Gauge("Point Atkinson", -123.27, 49.31),
)


def place(gauges: tuple[Gauge, ...], bathymetry: Bathymetry) -> tuple[tuple[int, int], ...]:
    """Row and column of the sea cell nearest to each gauge."""
    return tuple(bathymetry.nearest_sea(gauge.longitude, gauge.latitude) for gauge in gauges)


def true_source(bathymetry: Bathymetry) -> Array:
    """The sea surface just after the earthquake, in meters: uplift seaward, a trough landward."""
    along, across = _along_and_across(bathymetry, longitude=-125.38, latitude=48.43)
    uplift = 2.0 * np.exp(-((along / 22e3) ** 2) - ((across + 6e3) / 9e3) ** 2)
    trough = -1.0 * np.exp(-((along / 22e3) ** 2) - ((across - 10e3) / 9e3) ** 2)
    return np.where(bathymetry.sea, uplift + trough, 0.0)


def _along_and_across(
    bathymetry: Bathymetry, longitude: float, latitude: float
) -> tuple[Array, Array]:
    """Distances from a position, in meters: along the strike (southeast) and across (northeast)."""
    scale = EARTH_RADIUS * np.cos(np.deg2rad(latitude))
    east = scale * np.deg2rad(bathymetry.longitude - longitude)[None, :]
    north = EARTH_RADIUS * np.deg2rad(bathymetry.latitude - latitude)[:, None]
    sine, cosine = np.sin(np.deg2rad(STRIKE)), np.cos(np.deg2rad(STRIKE))
    return east * sine + north * cosine, north * sine - east * cosine
