"""What operations, loops and bytes take on a kind of device: the constants of the cost model.

A profile is a small JSON file. The platforms' profiles are beside this one. Only ratios matter for
the choice of a plan.
"""

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Profile:
    """The nanoseconds that things take on a device."""

    device: str  # the kind of device, as JAX names it, or a platform
    origin: str  # where the numbers come from

    # The work of a step (`step.work`)
    product_operation: float  # an addition or multiplication of a matrix product or convolution
    byte: float  # a byte of the result of any other operation
    transcendental_byte: float  # the same of a transcendental function
    slow_byte: float  # the same of an operation that has no vector instructions
    kernel: float  # an operation that is a kernel of its own, such as a product or a gather

    # The work of a loop (`schedule.cost`)
    evaluation: float  # an iteration of the loop that runs steps
    block: float  # an iteration of the loop over blocks
    waiting: float  # an iteration of a loop whose end depends on data
    residual_byte: float  # writing and reading a byte of residuals
    residual_array: float  # writing an array of residuals, however small
    weight_byte: float  # adding to a byte of the cotangent of a weight
    held_byte: float  # a byte of memory beyond the `reused` ones
    reused: float  # the bytes that caches keep, and the allocator hands out again; not a time
    # What a byte less in the residuals of a step may cost. It is worth more than what storing it
    # takes: blocks can be longer, and loops fit that did not.
    saved_byte: float

    # Checkpoints elsewhere
    host_transfer: float  # writing or reading a checkpoint in the host's memory
    host_byte: float  # a byte of it
    disk_transfer: float  # the same for a file
    disk_byte: float

    def __str__(self) -> str:
        return f"{self.device} ({self.origin})"


TEXTS = ("device", "origin")
MOST = 1e15
"""More is a mistake, and products of such numbers are still finite."""


@cache
def read(path: Path) -> Profile:
    """The profile in a file; a `ValueError` that names the file if it holds none. It is read once:
    the plans of a program do not change while it runs."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _refusal(path, f"must be JSON, but is not: {error}") from error
    if not isinstance(found, dict):
        raise _refusal(path, f"must be a JSON object, but is a {type(found).__name__}")
    names = {field.name for field in fields(Profile)}
    for what, wrong in ("lacks", names - {*found}), ("has no use for", {*found} - names):
        if wrong:
            raise _refusal(path, f"{what} these entries: {', '.join(sorted(wrong))}")
    values: dict[str, Any] = {}
    for name, value in found.items():
        is_text, is_number = isinstance(value, str), type(value) in (int, float)
        if not (is_text if name in TEXTS else is_number and 0 <= value <= MOST):
            allowed = "a text" if name in TEXTS else f"a number from 0 to {MOST:g}"
            raise _refusal(path, f"must have {allowed} as {name}, but it is {value!r}")
        values[name] = value if is_text else float(value)
    return Profile(**values)


def _refusal(path: Path, problem: str) -> ValueError:
    return ValueError(
        f"The profile {path} {problem}. Copy one of the profiles in {FOLDER} and change its "
        "numbers, or unset JAX_REVOLVE_PROFILE to use the one of the platform."
    )


@cache
def of_platform(platform: str) -> Profile:
    """The profile of a platform as it comes with the package; for one that has none, the CPUs',
    which says so."""
    path = FOLDER / f"{platform}.json"
    if path.exists():
        return read(path)
    cpu = read(FOLDER / "cpu.json")
    return replace(cpu, origin=f"{cpu.origin}; there is none for the platform {platform}")


CPU = of_platform("cpu")
