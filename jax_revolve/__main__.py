"""`python -m jax_revolve`: find the source of a tsunami with gradients through its simulation."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

EXTRA = {"matplotlib", "tqdm"}


def main(arguments: list[str] | None = None) -> int:
    """Run the example from the command line; returns the exit code."""
    options = vars(_parser().parse_args(arguments))
    sys.path.insert(0, str(_examples()))
    try:
        job = import_module("tsunami.job")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRA:
            raise
        print(
            f'This needs {error.name}, which is not installed: pip install "jax_revolve[demo]"',
            file=sys.stderr,
        )
        return 2
    job.run(**options)
    return 0


def _examples() -> Path:
    """The folder of the examples: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parent / "examples"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jax_revolve",
        description="Find the source of a tsunami off Vancouver Island from a few tide gauges.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=Path("tsunami.png"), help="PNG to write")
    parser.add_argument("--hours", type=float, default=4.0, help="ocean time to simulate")
    parser.add_argument("--refinement", type=int, default=2, help="grid cells per cell of the data")
    parser.add_argument("--iterations", type=int, default=30, help="iterations of the search")
    parser.add_argument(
        "--checkpoints",
        type=int,
        default=argparse.SUPPRESS,
        help="stored carries (default: chosen by the plan)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
