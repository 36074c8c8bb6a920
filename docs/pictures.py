"""Draws the pictures of the documentation with the library's own plots, for both themes.

python docs/pictures.py
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
from matplotlib import pyplot

from jax_revolve import Plan, Report, explain_scan, plan

FOLDER = Path(__file__).parent / "pictures"

DARK = {
    "#222222": "#d8d8e0",  # text and frame
    "#dddddd": "#4a4a58",  # grid
    "#808080": "#9a9aa8",  # checkpoints held
    "#999999": "#9a9aa8",
    "#0072b2": "#56b4e9",  # advanced
    "#d55e00": "#ff9a4d",  # taped
}
"""What becomes of each color on a dark page."""

STYLE: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), "#222222"),
    **dict.fromkeys(("xtick.color", "ytick.color"), "#222222"),
    "font.size": 11.0,
    "legend.frameon": False,
    "svg.hashsalt": "jax_revolve",
}


def heat_report() -> Report:
    """The trade-off of a loop with a state of 80 kB."""

    def step(u: Any, _: Any) -> Any:
        return u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)) - 0.01 * u**3, None

    return explain_scan(step, jax.ShapeDtypeStruct((20000,), "float32"), length=1000, memory="4MB")


PICTURES: dict[str, Callable[[], Plan | Report]] = {
    "three-checkpoints": lambda: plan(15, 3),
    "six-checkpoints": lambda: plan(100, 6),
    "blocks": lambda: plan(200, 5, block_size=10),
    "trade-off": heat_report,
}


def draw(name: str, folder: Path = FOLDER) -> None:
    """Writes NAME-light.svg and NAME-dark.svg."""
    with matplotlib.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(6.6, 3.9), layout="constrained")
        PICTURES[name]().plot(axes)
        light = folder / f"{name}-light.svg"
        figure.savefig(light, transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = light.read_text()
    for color, dark in DARK.items():
        text = text.replace(color, dark)
    (folder / f"{name}-dark.svg").write_text(text)


def main() -> None:
    matplotlib.use("svg")
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        draw(name)


if __name__ == "__main__":
    main()
