"""The command `python -m jax_revolve calibrate`."""

from pathlib import Path

from jax_revolve._compat import default_device
from jax_revolve.calibration.calibrate import calibrate
from jax_revolve.profiles.in_force import VARIABLE, file_of
from jax_revolve.profiles.profile import write


def run(seconds: float, output: Path | None = None) -> None:
    """Measure the device, print what was measured, and write the profile."""
    if not seconds > 0:
        raise ValueError(f"seconds must be > 0, but is {seconds}.")
    path = file_of(default_device().device_kind) if output is None else output
    if path is None:
        raise ModuleNotFoundError("There is no user's cache directory.", name="platformdirs")
    found = calibrate(seconds)
    print(found)
    write(found.profile, path)
    print(f"Written: {path}")
    if output is not None:
        print(f"To use it, set the environment variable {VARIABLE} to that path.")
