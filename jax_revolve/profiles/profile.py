"""The time that operations, loops and bytes take on a kind of device: the constants of the cost
model. A profile is a small JSON file; each platform's is beside this one. Only ratios
matter for the choice of a plan."""

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent

MOST = 1e15
"""More nanoseconds must be a mistake. Products of such numbers are still finite."""


@dataclass(frozen=True)
class Profile:
    """Times on a device, in nanoseconds."""

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
    copied_byte: float  # also, if an operation that is a kernel of its own makes or reads it
    residual_array: float  # writing an array of residuals, however small
    weight_byte: float  # adding a product to a byte of the cotangent of a weight
    held_byte: float  # a byte of memory beyond the `reused` ones
    reused: float  # the bytes that caches keep, and the allocator hands out again; not a time
    # The time worth spending to save a byte of a step's residuals. It is more than storing it
    # takes, because blocks can then be longer, and larger loops fit.
    saved_byte: float

    # Checkpoints elsewhere
    host_transfer: float  # writing or reading a checkpoint in the host's memory
    host_byte: float  # a byte of it
    disk_transfer: float  # the same for a file
    disk_byte: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value, is_text = getattr(self, field.name), field.type is str
            is_number = type(value) in (int, float) and 0 <= value <= MOST
            if not (isinstance(value, str) if is_text else is_number):
                allowed = "a text" if is_text else f"a number from 0 to {MOST:g}"
                raise ValueError(f"{field.name} must be {allowed}, but is {value!r}")

    def __str__(self) -> str:
        return f"{self.device} ({self.origin})"


@cache
def read(path: Path) -> Profile:
    """The profile in a file, read once: the plans of a program do not change while it runs."""
    try:
        return Profile(**json.loads(path.read_bytes()))
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"JAX_REVOLVE_PROFILE must name the JSON file of a profile, but {path} is none: "
            f"{error}. Copy one of the profiles in {FOLDER} and change its numbers, or unset the "
            "variable to use the one of the platform."
        ) from error


@cache
def of_platform(platform: str) -> Profile:
    """The profile of a platform that comes with the package; for a platform without one, the CPU
    profile, with a note."""
    path = FOLDER / f"{platform}.json"
    if path.exists():
        return read(path)
    cpu = read(FOLDER / "cpu.json")
    return replace(cpu, origin=f"{cpu.origin}; there is none for the platform {platform}")


CPU = of_platform("cpu")
