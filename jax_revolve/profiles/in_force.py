"""The profile of the device that JAX uses."""

import os
import re
from functools import cache
from pathlib import Path

from jax_revolve._compat import default_device
from jax_revolve.profiles.profile import Profile, of_platform, read

VARIABLE = "JAX_REVOLVE_PROFILE"
"""The environment variable that names the file of the profile to use."""


def profile_in_force() -> Profile:
    """The profile that plans are chosen by: the one that `JAX_REVOLVE_PROFILE` names; that of the
    device, if one was measured on this machine; that of the platform."""
    device = default_device()
    return _profile(os.environ.get(VARIABLE, ""), device.platform, device.device_kind)


def profile_of_platform() -> Profile:
    """The profile of the device's platform. What is kept of a step is chosen by it, so that the
    bytes of a plan are the same whatever was measured."""
    return of_platform(default_device().platform)


@cache
def _profile(file: str, platform: str, kind: str) -> Profile:
    """Read once: the plans of a program do not change while it runs."""
    if file:
        return read(Path(file))
    measured = file_of(kind)
    if measured is not None and measured.exists():
        return read(measured)
    return of_platform(platform)


def file_of(kind: str) -> Path | None:
    """The file in the user's cache directory for the profile of a kind of device; `None` without
    platformdirs, which tells where that is."""
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:
        return None
    return user_cache_path("jax_revolve") / "profiles" / f"{slug(kind)}.json"


def slug(kind: str) -> str:
    """The kind of device as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")
