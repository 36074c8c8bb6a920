"""`python -m jax_revolve`: a demonstration that finds the source of a tsunami by inversion."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def main(arguments: list[str] | None = None) -> None:
    """Run the demonstration with the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m jax_revolve",
        description="Find the source of a tsunami off Vancouver Island from a few tide gauges.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, unset = parser.add_argument, argparse.SUPPRESS
    add("--output", type=Path, default=Path("tsunami.png"), help="PNG to write")
    add("--hours", type=float, default=4.0, help="hours to simulate")
    add("--refinement", type=int, default=2, help="grid cells per cell of the data")
    add("--iterations", type=int, default=30, help="iterations of the search")
    add("--checkpoints", type=int, default=unset, help="stored carries (default: by the plan)")
    options = vars(parser.parse_args(arguments))
    installed = PACKAGE / "examples"
    sys.path.insert(0, str(installed if installed.is_dir() else PACKAGE.parent / "examples"))
    try:
        import_module("tsunami.job").run(**options)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("matplotlib", "tqdm"):
            raise
        parser.exit(2, f"{parser.prog}: error: this needs {package}: pip install {package}\n")


if __name__ == "__main__":
    main()
