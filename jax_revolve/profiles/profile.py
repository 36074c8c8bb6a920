"""What operations, loops and bytes take on a kind of device: the constants of the cost model.

A profile is a small JSON file. Those of the platforms are beside this one;
`python -m jax_revolve calibrate` measures one of a device. Only ratios matter for the choice of a
plan.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from math import isfinite
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
NUMBERS = tuple(field.name for field in fields(Profile) if field.name not in TEXTS)


def read(path: Path) -> Profile:
    """The profile in a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} must be a profile in JSON, but is not: {error}.") from error
    return _checked(found, path)


def _checked(found: Any, path: Path) -> Profile:
    names = {*TEXTS, *NUMBERS}
    if not isinstance(found, dict) or set(found) != names:
        given = sorted(found) if isinstance(found, dict) else type(found).__name__
        raise ValueError(
            f"{path} must have the entries {', '.join(sorted(names))}, but has {given}. Make it "
            "anew with python -m jax_revolve calibrate."
        )
    for name in NUMBERS:
        value = found[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not isfinite(value) or value < 0:
            raise ValueError(f"{name} in {path} must be a number >= 0, but is {value!r}.")
    numbers = {name: float(found[name]) for name in NUMBERS}
    return Profile(str(found["device"]), str(found["origin"]), **numbers)


def write(profile: Profile, path: Path) -> None:
    """Write a profile to a file, whose folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(asdict(profile), indent=2) + "\n", encoding="utf-8")
    beside.replace(path)


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
