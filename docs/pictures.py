"""A hook of MkDocs that draws pictures: the library's own plots for both themes, and the social
card.

python docs/pictures.py     # stores the result of the demo as tsunami.png, in about a minute

`benchmarks/report` stores the pictures of results, `examples/bay.py` draws `bay.png`, and the last
picture of `examples/inversion.py` is `inversion.png`.
"""

from collections.abc import Callable
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
from matplotlib.artist import setp
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from palette import small

from jax_revolve import Plan, checkpointed_scan, explain, plan
from jax_revolve.typing import Report

FOLDER = Path(__file__).parent / "pictures"

DARK = {
    "#222222": "#d8d8e0",  # text and frame
    "#dddddd": "#4a4a58",  # grid
    "#808080": "#9a9aa8",  # checkpoints held
    "#bbbbbb": "#5c5c6c",  # taped alone
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


def on_files(files: Files, config: MkDocsConfig) -> None:
    for name, content in drawn().items():
        files.append(File.generated(config, f"pictures/{name}", content=content))


@cache
def drawn() -> dict[str, str | bytes]:
    """The pictures by the names of their files."""
    found: dict[str, str | bytes] = {"card.png": card()}
    for name, make in PICTURES.items():
        light = dark = _svg(make())
        for color, other in DARK.items():
            dark = dark.replace(color, other)
        found |= {f"{name}-light.svg": light, f"{name}-dark.svg": dark}
    return found


def _svg(drawing: Plan | Report) -> str:
    file = StringIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.6, 3.9), layout="constrained")
        drawing.plot(figure.subplots())
        metadata = {"Date": None, "Creator": None}
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    return file.getvalue()


def card() -> bytes:
    """What is shown beside a link to the site."""
    file = BytesIO()
    figure = Figure(figsize=(12, 6.3), dpi=100, facecolor="white")
    figure.add_artist(Rectangle((0, 0), 0.47, 1, color="#3f51b5", transform=figure.transFigure))
    figure.text(0.05, 0.64, "jax_revolve", fontsize=46, fontweight="bold", color="white")
    sentence = "Long loops in JAX,\ndifferentiable within\na memory budget"
    figure.text(0.05, 0.25, sentence, fontsize=26, linespacing=1.5, color="white")
    axes = figure.add_axes((0.52, 0.1, 0.44, 0.8))
    plan(60, 5).plot(axes)
    axes.set_axis_off()
    axes.set_title("")
    setp(axes.legend(), visible=False)
    figure.savefig(file, format="png")
    return small(file.getvalue())


def tsunami() -> None:
    """Writes tsunami.png, the picture of `python -m jax_revolve`."""
    from jax_revolve.__main__ import main as command

    file = FOLDER / "tsunami.png"
    command(["--output", str(file)])
    file.write_bytes(small(file.read_bytes()))


if __name__ == "__main__":
    tsunami()
