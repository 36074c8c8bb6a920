"""A full-waveform inversion of a hundred iterations, on one machine, which goes on after a kill.

    pip install "jax_revolve[examples]"
    python examples/inversion.py run  # two minutes; stop it in any way, and call it again

Four shots of an air gun, whose echoes are recorded at the surface of the sea, tell the speed of
sound in the rock. Each iteration is one gradient of a long loop, of which `checkpointed_scan` keeps
a few states, and one step of Optax's Adam. Orbax saves the iterate, Adam's moments and the misfits
every few iterations. A run that was killed repeats the iterations since then, to the same bits.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from tqdm import tqdm

from jax_revolve import checkpointed_scan

ROWS, COLUMNS, SPACING = 60, 120, 20.0  # cells, cells, m
STEPS, TIME_STEP, FREQUENCY = 600, 0.0025, 7.0  # steps, s, Hz
SPONGE, GUN_ROW, SCALE = 15, 2, 100.0  # cells, row, m/s
GUNS = np.linspace(20, COLUMNS - 21, 4).astype(np.int32)
RECEIVERS = np.arange(SPONGE, COLUMNS - SPONGE, 2)
OPTIMIZER = optax.adam(0.2)

COLUMN, ROW = np.meshgrid(np.arange(COLUMNS), np.arange(ROWS))
WATER = ROW < 10


def earth() -> np.ndarray:
    """The speed of sound in m/s, which the inversion is to find."""
    bend = 3 * np.sin(2 * np.pi * COLUMN / COLUMNS)
    speed = np.where(WATER, 1500.0, 1800.0)
    for depth, value in ((20 + bend, 2100.0), (34 - bend, 2500.0), (48, 2900.0)):
        speed = np.where(depth < ROW, value, speed)
    return np.where(((COLUMN - 45) / 14) ** 2 + ((ROW - 27) / 4) ** 2 < 1, 1750.0, speed)


START = np.where(WATER, 1500.0, 1750.0 + 25.0 * (ROW - 10))


def shot(speed: jax.Array, gun: Any, steps: int, scan: Any) -> jax.Array:
    """What the receivers record, shape `(steps, receivers)`."""
    edge = np.minimum.reduce([COLUMN, COLUMNS - 1 - COLUMN, ROWS - 1 - ROW])
    sponge = jnp.asarray(np.exp(-((0.015 * np.maximum(SPONGE - edge, 0)) ** 2)), jnp.float32)
    phase = (np.pi * FREQUENCY * (TIME_STEP * np.arange(steps) - 1.2 / FREQUENCY)) ** 2
    bang = jnp.asarray((1 - 2 * phase) * np.exp(-phase), jnp.float32)

    def step(fields: Any, pressure: jax.Array) -> Any:
        now, before = fields
        padded = jnp.pad(now, 1)
        around = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
        after = 2 * now - before + (speed * TIME_STEP / SPACING) ** 2 * (around - 4 * now)
        after = sponge * after.at[GUN_ROW, gun].add(pressure)
        return (after, sponge * now), after[GUN_ROW, RECEIVERS]

    silence = jnp.zeros((ROWS, COLUMNS), jnp.float32)
    return scan(step, (silence, silence), bang)[1]


def records(speed: Any, steps: int, scan: Any = jax.lax.scan) -> jax.Array:
    run = partial(shot, jnp.asarray(speed, jnp.float32), steps=steps, scan=scan)
    return jax.vmap(run)(jnp.asarray(GUNS))


def speed_of(change: Any) -> Any:
    """The speed, of which the water's is known."""
    return START + SCALE * jnp.where(WATER, 0.0, change)


def misfit(change: jax.Array, observed: jax.Array, memory: str) -> jax.Array:
    scan = partial(checkpointed_scan, memory=memory)
    return jnp.sum((records(speed_of(change), observed.shape[1], scan) - observed) ** 2)


@partial(jax.jit, static_argnames="memory", donate_argnums=(0, 1))
def improve(change: jax.Array, moments: Any, observed: jax.Array, memory: str) -> Any:
    """The change and the moments after an iteration, and the misfit before it."""
    value, gradient = jax.value_and_grad(misfit)(change, observed, memory)
    updates, moments = OPTIMIZER.update(gradient, moments)
    return optax.apply_updates(change, updates), moments, value


def invert(
    directory: Path, iterations: int = 100, steps: int = STEPS, every: int = 5, memory: str = "5MB"
) -> Any:
    """Invert, or go on with what is saved in the directory, where a picture is drawn at each save.
    Returns the change of the speed, the moments, and the misfits."""
    observed = jax.jit(partial(records, steps=steps))(earth())
    change = jnp.zeros((ROWS, COLUMNS), jnp.float32)
    moments, misfits = OPTIMIZER.init(change), np.zeros(0, np.float32)
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    with ocp.CheckpointManager(directory.absolute() / "states", options=options) as manager:
        first = manager.latest_step() or 0
        if first:
            like = change, moments, np.zeros(first, np.float32)
            saved = manager.restore(first, args=ocp.args.StandardRestore(like))
            change, moments, misfits = saved
        numbers = range(first, iterations)
        with tqdm(numbers, initial=first, total=iterations, unit="iteration") as bar:
            for iteration in bar:
                change, moments, value = improve(change, moments, observed, memory)
                misfits = np.append(misfits, value)
                bar.set_postfix(misfit=f"{value / misfits[0]:.2%}")
                if (iteration + 1) % every == 0 or iteration + 1 == iterations:
                    draw(change, misfits, directory / f"{iteration + 1:04}.png")
                    state = change, moments, misfits
                    manager.save(iteration + 1, args=ocp.args.StandardSave(state))
    return change, moments, misfits


def draw(change: jax.Array, misfits: np.ndarray, file: Path) -> None:
    """The earth, what is found of it so far, and the misfits."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 2.8), layout="constrained")
    extent = (0, COLUMNS * SPACING / 1000, ROWS * SPACING / 1000, 0)
    for ax, speed, title in (
        (axes[0], earth(), "The earth (m/s)"),
        (axes[1], speed_of(change), f"After {int(file.stem)} iterations (m/s)"),
    ):
        image = ax.imshow(speed, cmap="cividis", vmin=1500, vmax=2900, extent=extent)
        ax.set(title=title, xlabel="distance (km)", ylabel="depth (km)")
        figure.colorbar(image, ax=ax, shrink=0.8)
    axes[2].semilogy(misfits / misfits[0])
    axes[2].set(title="Misfit over the first", xlabel="iteration")
    figure.savefig(file, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where states and pictures are saved")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--memory", default="5MB", help="for the states of the four shots")
    given = parser.parse_args()
    _, _, misfits = invert(given.directory, given.iterations, memory=given.memory)
    print(f"The misfit is {misfits[-1] / misfits[0]:.2%} of the first.")
    print(f"Pictures are in {given.directory}.")


if __name__ == "__main__":
    main()
