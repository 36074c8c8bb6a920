"""An hour of a bay in a squall: 10 000 steps, with wind that is read from files.

    python examples/bay.py         # half a minute; writes bay.png
    python examples/bay.py --run run  # the same, saved in the directory `run`: stop it, and go on

The linear shallow-water equations on 64 x 64 cells of 25 m, with a step of 0.36 s. A squall drives
water into the north-east corner, where the quay is. The gradient of the water level there, after an
hour, tells where a deeper sea floor would raise or lower it: one derivative for each cell.
"""

import argparse
import tempfile
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_revolve import host_scan

CELLS, WIDTH = 64, 25.0  # m
STEPS, SECONDS = 10_000, 0.36
STEPS_IN_A_FILE = 100
GRAVITY, DRAG, COARSE = 9.81, 2e-4, 8


def write_wind(folder: Path, steps: int) -> None:
    """Files of wind stress over density, m^2/s^2, on a coarse grid: stands for a weather model's
    output."""
    places = (np.arange(COARSE) + 0.5) / COARSE
    east, north = np.meshgrid(places, places, indexing="ij")
    for first in range(0, steps, STEPS_IN_A_FILE):
        hours = SECONDS * np.arange(first, first + STEPS_IN_A_FILE)[:, None, None] / 3600
        distance = east + north - 2.5 * hours + 0.3
        strength = 4e-4 * np.exp(-8 * distance**2) + 1e-4
        gusts = 1 + 0.2 * np.sin(40 * hours + 6 * east)
        stress = np.stack([strength * gusts, 0.6 * strength], axis=1)
        np.save(folder / f"{first // STEPS_IN_A_FILE}.npy", stress.astype(np.float32))


def reader(folder: Path) -> Any:
    """A function from the number of a step to its wind. It keeps one file in memory."""
    load = lru_cache(1)(lambda number: np.load(folder / f"{number}.npy"))
    return lambda step: load(step // STEPS_IN_A_FILE)[step % STEPS_IN_A_FILE]


def sea_floor() -> jax.Array:
    """Depth in meters: a channel that ends at the quay, between shoals."""
    east, north = np.meshgrid(*[np.linspace(0, 1, CELLS)] * 2, indexing="ij")
    channel = np.exp(-(((east - north) / 0.15) ** 2))
    return jnp.asarray(4 + 14 * channel + 6 * (1 - east), jnp.float32)


def step(depth: jax.Array, state: Any, wind: jax.Array) -> tuple[Any, None]:
    """Flow through the faces between cells, m^2/s, and then the surface, m."""
    surface, east, north = state
    push = jnp.repeat(jnp.repeat(wind, CELLS // COARSE, 1), CELLS // COARSE, 2)

    def driven(flow: jax.Array, axis: int) -> jax.Array:
        at_face = partial(_between, axis=axis)
        slope = jnp.diff(surface, axis=axis) / WIDTH
        pull = at_face(push[axis]) - GRAVITY * at_face(depth) * slope
        return (flow + SECONDS * pull) / (1 + SECONDS * DRAG)

    east, north = driven(east, 0), driven(north, 1)
    out = jnp.diff(jnp.pad(east, ((1, 1), (0, 0))), axis=0)
    out += jnp.diff(jnp.pad(north, ((0, 0), (1, 1))), axis=1)
    return (surface - SECONDS / WIDTH * out, east, north), None


def _between(values: jax.Array, axis: int) -> jax.Array:
    """Values at the faces between cells, from those in the cells."""
    cells = values.shape[axis]
    first, last = (jax.lax.slice_in_dim(values, i, cells - 1 + i, axis=axis) for i in (0, 1))
    return 0.5 * (first + last)


def level_at_the_quay(
    depth: jax.Array, wind: Any, steps: int = STEPS, scan: Any = host_scan, **options: Any
) -> tuple[jax.Array, jax.Array]:
    """The mean level over the last cells of the channel, and the whole surface."""
    still = jnp.zeros((CELLS, CELLS), jnp.float32)
    start = still, still[1:], still[:, 1:]
    (surface, _, _), _ = scan(partial(step, depth), start, wind, steps, **options)
    return jnp.mean(surface[-4:, -4:]), surface


def draw(surface: np.ndarray, gradient: np.ndarray, file: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained")
    panels = [
        (100 * surface, "Water level after an hour (cm)"),
        (1000 * gradient, "Level at the quay (mm per m of depth)"),
    ]
    for ax, (values, title) in zip(axes, panels, strict=True):
        limit = np.max(np.abs(values))
        extent = (0, CELLS * WIDTH / 1000, 0, CELLS * WIDTH / 1000)
        image = ax.imshow(
            values.T, origin="lower", cmap="RdBu_r", vmin=-limit, vmax=limit, extent=extent
        )
        ax.set_title(title, fontsize="medium")
        ax.set(xlabel="east (km)", ylabel="north (km)")
        figure.colorbar(image, ax=ax)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", help="the directory of a run that can be resumed")
    directory = parser.parse_args().run
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(directory or temporary) / "wind"  # a run goes on with the same files
        folder.mkdir(parents=True, exist_ok=True)
        write_wind(folder, STEPS)
        options = {"checkpoints": 100, "directory": directory, "save_every": 5.0, "progress": True}
        options["version"] = "wind-1"  # the function for the wind, and its files
        gradient = jax.value_and_grad(level_at_the_quay, has_aux=True)
        (level, surface), found = gradient(sea_floor(), reader(folder), **options)
    print(f"The water at the quay is {100 * level:.1f} cm high after an hour.")
    draw(np.asarray(surface), np.asarray(found), "bay.png")


if __name__ == "__main__":
    main()
