"""Draws the pictures of the documentation.

python docs/pictures.py             # the library's own plots for both themes, and the social card
python docs/pictures.py tsunami     # the result of the demo, in about a minute

`benchmarks/report` draws `headline-cpu.png`, `examples/bay.py` draws `bay.png`, and the last
picture of `examples/inversion.py` is `inversion.png`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
from matplotlib import pyplot
from matplotlib.patches import Rectangle
from palette import small

from jax_revolve import Plan, checkpointed_scan, explain, plan
from jax_revolve.typing import Report

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

    def run(u: Any) -> Any:
        return checkpointed_scan(step, u, length=1000, memory="4MB")[0]

    return explain(run)(jax.ShapeDtypeStruct((20000,), "float32")).loops[0]


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


def card(folder: Path = FOLDER) -> None:
    """Writes card.png, which is shown beside a link to the site."""
    figure = pyplot.figure(figsize=(12, 6.3), dpi=100, facecolor="white")
    figure.add_artist(Rectangle((0, 0), 0.47, 1, color="#3f51b5", transform=figure.transFigure))
    figure.text(0.05, 0.64, "jax_revolve", fontsize=46, fontweight="bold", color="white")
    sentence = "Long loops in JAX,\ndifferentiable within\na memory budget"
    figure.text(0.05, 0.25, sentence, fontsize=26, linespacing=1.5, color="white")
    axes = figure.add_axes((0.52, 0.1, 0.44, 0.8))
    plan(60, 5).plot(axes)
    axes.set_axis_off()
    axes.set_title("")
    pyplot.setp(axes.get_legend(), visible=False)
    figure.savefig(folder / "card.png")
    pyplot.close(figure)
    _shrink(folder / "card.png")


def tsunami(folder: Path = FOLDER) -> None:
    """Writes tsunami.png, the picture of `python -m jax_revolve`."""
    from jax_revolve.__main__ import main as command

    command(["--output", str(folder / "tsunami.png")])
    _shrink(folder / "tsunami.png")


def _shrink(file: Path) -> None:
    file.write_bytes(small(file.read_bytes()))


def main() -> None:
    matplotlib.use("agg")
    FOLDER.mkdir(exist_ok=True)
    if sys.argv[1:] == ["tsunami"]:
        tsunami()
        return
    for name in PICTURES:
        draw(name)
    card()


if __name__ == "__main__":
    main()
