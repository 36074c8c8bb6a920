"""The profile of the device that JAX uses."""

import os
from pathlib import Path

from jax_revolve._compat.memories import default_device
from jax_revolve.profiles.profile import Profile, of_platform, read

VARIABLE = "JAX_REVOLVE_PROFILE"
"""The environment variable that names the file of the profile to use."""


def profile_in_force() -> Profile:
    """The profile that `JAX_REVOLVE_PROFILE` names, or the one of the device's platform."""
    file = os.environ.get(VARIABLE)
    return read(Path(file)) if file else profile_of_platform()


def profile_of_platform() -> Profile:
    """The profile of the device's platform. It determines which residuals are kept, so that the
    bytes of a plan do not depend on the profile in force."""
    return of_platform(default_device().platform)
