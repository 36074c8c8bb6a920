"""`python -m jax_revolve`: plan a reverse pass, or run the demonstration."""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from jax_revolve.schedule.arguments import readable
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.planning import longest_plan, plan

EXTRA = {"matplotlib", "tqdm"}

EXAMPLES = """examples:
  python -m jax_revolve plan --length 100000 --checkpoints 50
  python -m jax_revolve plan --length 100000 --checkpoints 50 --block-size 20 --plot plan.png
  python -m jax_revolve plan --length 100000 --state-bytes 80000 --residual-bytes 240000 \\
      --memory 2GiB
  python -m jax_revolve plan --length 100000 --overhead 2
  python -m jax_revolve plan --checkpoints 50 --repetitions 3      (the longest possible loop)
"""


class Parser(argparse.ArgumentParser):
    """An argument parser with errors of one line."""

    def error(self, message: str) -> NoReturn:
        message = " ".join(message.split())
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser, parsers = _parsers()
    # Without a command, the demonstration runs, with its options.
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = ["demo", *arguments]
    if arguments[0] == "calibrate":
        parser.error(
            "calibrate is gone: explain(loss, measure=True) times the plans of its loops, and "
            "JAX_REVOLVE_PROFILE names a profile, such as one that calibrate wrote"
        )
    options = vars(parser.parse_args(arguments))
    command = options.pop("command")
    try:
        return {"plan": _plan, "demo": _demo}[command](options)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA:
            raise
        problem = f"this needs {package}: pip install {package}"
    except (ValueError, TypeError, OSError, OverflowError) as error:
        if command == "demo":
            raise
        problem = str(error)
    print(f"{parsers[command].prog}: error: {problem}", file=sys.stderr)
    return 2


def _plan(options: dict[str, Any]) -> int:
    """Print a plan, and draw it on request."""
    file, text = options.pop("plot"), options.pop("show")
    state, residuals = options["state_bytes"], options["residual_bytes"]
    made = _make_plan(options)
    print(made.show() if text else made)
    if state is not None and residuals is not None:
        print(f"memory: {readable(made.memory(state, residuals))}")
    if file is not None:
        made.plot().figure.savefig(file, dpi=150, format=file.suffix[1:] or "png")
        print(f"written: {file}")
    return 0


def _make_plan(options: dict[str, Any]) -> Plan:
    if options["length"] is not None:
        return plan(**options)
    given = {name for name, value in options.items() if value is not None}
    given -= {"state_bytes", "residual_bytes"}
    if not {"checkpoints", "repetitions"} <= given <= {"checkpoints", "repetitions", "block_size"}:
        raise ValueError(
            "--length is needed, or --checkpoints and --repetitions for the longest loop"
        )
    return longest_plan(
        options["checkpoints"], options["repetitions"], block_size=options["block_size"] or 1
    )


def _demo(options: dict[str, Any]) -> int:
    sys.path.insert(0, str(_examples()))
    import_module("tsunami.job").run(**options)
    return 0


def _examples() -> Path:
    """The folder of the examples: in an installed package, or next to the package in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parent / "examples"


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(
        prog="python -m jax_revolve",
        description="Long loops in JAX, differentiable within a memory budget.",
        epilog="The default command is demo. COMMAND --help lists the options of a command.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    return parser, {
        "plan": _plan_parser(commands),
        "demo": _demo_parser(commands),
    }


def _plan_parser(commands: Any) -> Parser:
    about = "print the plan of a reverse pass"
    parser = commands.add_parser(
        "plan",
        help=about,
        description=f"{about.capitalize()}: the optimal schedule for a loop of known length.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--length", type=int, metavar="N", help="number of steps")
    add("--block-size", type=int, metavar="K", help="steps taped together (default: 1)")
    add("--plot", type=Path, metavar="FILE", help="draw the schedule into a file (PNG, SVG, PDF)")
    add("--show", action="store_true", help="draw the schedule as text")
    wanted = parser.add_argument_group("budget (at most one with --length)")
    add = wanted.add_argument
    add(
        "--checkpoints",
        type=_int_or_all,
        metavar="S",
        help='stored carries, including the initial one, or "all"',
    )
    add("--repetitions", type=int, metavar="R", help="the most advances of any step")
    add("--overhead", type=float, metavar="X", help="the most advances per step, on average")
    add("--memory", metavar="BYTES", help='bytes, such as "512MB" or "2GiB"; needs both sizes')
    sizes = parser.add_argument_group("sizes, which jax_revolve.explain measures")
    add = sizes.add_argument
    add("--state-bytes", type=int, metavar="BYTES", help="bytes of a carry")
    add("--residual-bytes", type=int, metavar="BYTES", help="bytes of the residuals of one step")
    return parser


def _int_or_all(text: str) -> int | str:
    if text == "all":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'must be an int or "all", but is {text!r}') from None


def _demo_parser(commands: Any) -> Parser:
    about = "find the source of a tsunami off Vancouver Island from a few tide gauges"
    parser = commands.add_parser(
        "demo",
        help=about,
        description=f"{about.capitalize()}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("tsunami.png"), help="PNG to write")
    add("--hours", type=float, default=4.0, help="hours to simulate")
    add("--refinement", type=int, default=2, help="grid cells per cell of the data")
    add("--iterations", type=int, default=30, help="iterations of the search")
    add(
        "--checkpoints",
        type=int,
        default=argparse.SUPPRESS,
        help="stored carries (default: chosen by the plan)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
