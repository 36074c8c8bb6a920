"""What devices take, as data: reading it, and which profile is in force."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_revolve import checkpointed_scan
from jax_revolve.profiles import in_force
from jax_revolve.profiles.profile import CPU, FOLDER, of_platform, read

pytestmark = pytest.mark.usefixtures("default_precision")

ENTRIES = asdict(CPU)


def write(entries: Any, path: Path) -> Path:
    path.write_text(json.dumps(entries))
    return path


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_profiles_of_the_package(path: Path, tmp_path: Path) -> None:
    """Written again they are the same."""
    profile = read(path)
    assert profile.device == path.stem
    assert read(write(asdict(profile), tmp_path / "copy.json")) == profile


def test_the_profile_in_force(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one that the environment names, or the platform's."""
    named = replace(CPU, origin="named")
    monkeypatch.setenv(in_force.VARIABLE, str(write(asdict(named), tmp_path / "named.json")))
    assert in_force.profile_in_force() == named
    monkeypatch.setenv(in_force.VARIABLE, "")
    assert in_force.profile_in_force() == CPU
    monkeypatch.delenv(in_force.VARIABLE)
    assert in_force.profile_in_force() == in_force.profile_of_platform() == CPU
    other = of_platform("rocm")
    assert replace(other, origin=CPU.origin) == CPU
    assert str(other).endswith("there is none for the platform rocm)")


WRONG: list[Any] = [None, [1], True]
NUMBER = "byte must be a number from 0 to 1e[+]15, but is"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((ENTRIES | {"device": x}, "device must be a text, but is") for x in [*WRONG, 1.0]),
        *((ENTRIES | {"byte": x}, NUMBER) for x in [*WRONG, "1", -1, math.nan, math.inf, 10**400]),
        (
            {k: v for k, v in ENTRIES.items() if k != "device"},
            "missing 1 required positional argument: 'device'",
        ),
        (
            {k: v for k, v in ENTRIES.items() if k != "byte"},
            "missing 1 required positional argument: 'byte'",
        ),
        (ENTRIES | {"more": 1}, "unexpected keyword argument 'more'"),
        ([], "must be a mapping, not list"),
        (b"\xff\xfe\xfa", "can't decode byte"),
        (None, "No such file"),
    ],
)
def test_a_damaged_file_is_refused(
    content: Any, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By every gradient: it once had one checkpoint then, and took a number of steps quadratic in
    the length."""
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    monkeypatch.setenv(in_force.VARIABLE, str(path))
    step = lambda u, _: (jnp.sin(u), None)  # noqa: E731
    with pytest.raises(ValueError, match=message) as error:
        jax.grad(lambda u: checkpointed_scan(step, u, None, 60)[0])(1.0)
    assert str(path) in str(error.value)
    assert str(error.value).endswith(
        f"Copy one of the profiles in {FOLDER} and change its numbers, or unset the "
        "variable to use the one of the platform."
    )
