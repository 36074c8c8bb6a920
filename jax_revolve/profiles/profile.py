"""What operations, loops and bytes take on a kind of device: the constants of the cost model.

A profile is a small JSON file. Those of the platforms are beside this one. Only ratios matter for
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
    """The nanoseconds that things take on a device.

    - `device`: the kind of device, as JAX names it, or a platform.
    - `origin`: where the numbers come from.

    The work of a step (`step.work`):

    - `product_operation`: an addition or a multiplication of a matrix product or convolution.
    - `byte`: a byte of the result of any other operation.
    - `transcendental_byte`, `slow_byte`: the same where the operation is a transcendental function,
      or one that has no vector instructions.
    - `kernel`: an operation that is a kernel of its own, such as a product or a gather.

    The work of a loop (`schedule.cost`):

    - `evaluation`: an iteration of the loop that runs steps.
    - `block`: an iteration of the loop over blocks.
    - `waiting`: an iteration of a loop whose end depends on data.
    - `residual_byte`: writing and reading a byte of residuals.
    - `weight_byte`: adding to a byte of the cotangent of a weight.
    - `held_byte`: allocating a byte, and touching it first, beyond the `reused` bytes that the
      allocator hands out again. These are not a time.
    - `saved_byte`: what a byte less in the residuals of a step may cost in time. It is worth more
      than what storing it takes: blocks can be longer, and loops fit that did not.

    Checkpoints elsewhere:

    - `host_transfer`, `host_byte`: writing or reading a checkpoint in the host's memory, and a byte
      of it.
    - `disk_transfer`, `disk_byte`: the same for a file.
    """

    device: str
    origin: str
    product_operation: float
    byte: float
    transcendental_byte: float
    slow_byte: float
    kernel: float
    evaluation: float
    block: float
    waiting: float
    residual_byte: float
    weight_byte: float
    held_byte: float
    reused: float
    saved_byte: float
    host_transfer: float
    host_byte: float
    disk_transfer: float
    disk_byte: float

    def __str__(self) -> str:
        return f"{self.device} ({self.origin})"


TEXTS = ("device", "origin")
MOST = 1e15
"""Nanoseconds: more is a mistake, and products of such times are still finite."""


_REMEDY = (
    f"Copy one of the profiles in {FOLDER} and change its numbers, or unset JAX_REVOLVE_PROFILE to "
    "use the one of the platform."
)


def read(path: Path) -> Profile:
    """The profile in a file; a `ValueError` that names the file if it holds none."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"The profile {path} cannot be read: {error}. {_REMEDY}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"The profile {path} must be JSON, but is not: {error}. {_REMEDY}"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"The profile {path} must be a JSON object, but is a {type(found).__name__}. {_REMEDY}"
        )
    names = {field.name: _text if field.name in TEXTS else _number for field in fields(Profile)}
    for what, wrong in ("lacks", names.keys() - found), ("has no use for", found.keys() - names):
        if wrong:
            entries = ", ".join(sorted(wrong))
            raise ValueError(f"The profile {path} {what} these entries: {entries}. {_REMEDY}")
    return Profile(**{name: check(name, found[name], path) for name, check in names.items()})


def _text(name: str, value: Any, path: Path) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} in the profile {path} must be text, but is {value!r}. {_REMEDY}")
    return value


def _number(name: str, value: Any, path: Path) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST:
        raise ValueError(
            f"{name} in the profile {path} must be a number from 0 to {MOST:g}, but is {value!r}. "
            f"{_REMEDY}"
        )
    return float(value)


@cache
def of_platform(platform: str) -> Profile:
    """The profile of a platform as it comes with the package; for one that has none, that of CPUs,
    which says so."""
    path = FOLDER / f"{platform}.json"
    if path.exists():
        return read(path)
    cpu = read(FOLDER / "cpu.json")
    return replace(cpu, origin=f"{cpu.origin}; there is none for the platform {platform}")


CPU = of_platform("cpu")
