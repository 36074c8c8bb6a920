"""What devices take, as data: reading it, and estimating a step's work and choosing plans by it."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from asked import explained_scan
from jax import lax

from jax_revolve import checkpointed_scan
from jax_revolve.profiles import in_force
from jax_revolve.profiles.profile import CPU, FOLDER, of_platform, read
from jax_revolve.schedule.cost import Sizes
from jax_revolve.step import work

pytestmark = pytest.mark.usefixtures("default_precision")

GPU = of_platform("gpu")
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


def test_any_plan_will_do_for_a_step_that_jax_cannot_transpose() -> None:
    """`jax.linearize` does not ask it to."""

    def step(u: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return lax.while_loop(lambda v: v[0] < 3, lambda v: 2 * v, u), None

    def loss(u: jax.Array) -> jax.Array:
        return checkpointed_scan(step, u, None, 5)[0]

    _, tangent = jax.linearize(loss, jnp.ones(2))
    assert tangent(jnp.ones(2)).tolist() == [4, 4]
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work for"):
        jax.vjp(loss, jnp.ones(2))[1](jnp.ones(2))


def test_what_is_kept_of_a_step_does_not_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes() -> Sizes:
        step = lambda u, _: (jnp.sin(u) * jnp.tanh(u), None)  # noqa: E731
        return explained_scan(step, jnp.ones(100), length=10).sizes

    before = sizes()
    monkeypatch.setenv(in_force.VARIABLE, str(FOLDER / "gpu.json"))
    after = sizes()
    assert (after.profile, before.profile) == (GPU, CPU)
    assert after.work != before.work
    for name in ("checkpoint", "residuals", "alone", "again", "factors"):
        assert getattr(after, name) == getattr(before, name)


# The work of a step


KERNEL, PRODUCT, SLOW = CPU.kernel, CPU.product_operation, 400 * CPU.slow_byte
LOOP = lambda x: lax.scan(lambda x, _: (jnp.sin(x), None), x, None, 7)[0]  # noqa: E731
BRANCH = lambda x: lax.cond(x[0] > 0, jnp.sin, lambda x: jnp.sin(jnp.sin(x)), x)  # noqa: E731


@pytest.mark.parametrize(
    ("fun", "shapes", "expected"),
    [
        (jnp.matmul, [(3, 4), (4, 5)], KERNEL + 2 * 3 * 4 * 5 * PRODUCT),
        (
            lambda x, k: lax.conv(x, k, (1, 1), "SAME"),
            [(1, 3, 8, 8), (5, 3, 2, 2)],
            KERNEL + 2 * (5 * 8 * 8) * (3 * 2 * 2) * PRODUCT,
        ),
        (lambda x: x + x, [(100,)], 400 * CPU.byte),
        (jnp.sum, [(100,)], 400 * CPU.byte),
        (jnp.tanh, [(100,)], 400 * CPU.transcendental_byte),
        (jnp.sin, [(100,)], SLOW),
        (jax.jit(jnp.sin), [(100,)], SLOW),
        (LOOP, [(100,)], 7 * SLOW),
        (BRANCH, [(100,)], pytest.approx(2.1 * SLOW, rel=0.05)),  # the longest counts
        (lambda x: x.reshape(10, 10), [(100,)], 0),
    ],
)
def test_the_work_of_a_step(fun: Any, shapes: Any, expected: Any) -> None:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    found = work.work_of(jax.make_jaxpr(fun)(*arguments), CPU)
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)
