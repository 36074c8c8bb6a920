"""What devices take, as data: reading it, and estimating a step's work and choosing plans by it."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from asked import explained_scan
from jax import lax

from jax_revolve import Plan, checkpointed_scan
from jax_revolve.profiles import in_force
from jax_revolve.profiles.profile import CPU, FOLDER, of_platform, read
from jax_revolve.schedule import cost
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.selection import quickest
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


def test_a_platform_without_a_profile() -> None:
    found = of_platform("rocm")
    assert replace(found, origin=CPU.origin) == CPU
    assert str(found).endswith("there is none for the platform rocm)")


def refused(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)
    assert str(error.value).endswith(
        f"Copy one of the profiles in {FOLDER} and change its numbers, or unset "
        "JAX_REVOLVE_PROFILE to use the one of the platform."
    )


@pytest.mark.parametrize("name", ["device", "byte"])
def test_a_damaged_entry_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    missing = {k: v for k, v in ENTRIES.items() if k != name}
    refused(write(missing, path), f"lacks these entries: {name}[.]")
    is_text = name == "device"
    wrong: list[Any] = [None, [1], True]
    wrong += [1.0] if is_text else ["1", -1, float("nan"), float("inf"), 10**400]
    for value in wrong:
        kind = "a text" if is_text else "a number from 0 to 1e[+]15"
        refused(write(ENTRIES | {name: value}, path), f"must have {kind} as {name}, but it is")


def test_a_file_that_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    for content, message in [
        (b"\xff\xfe\xfa", "must be JSON, but is not"),
        (b"[]", "must be a JSON object, but is a list"),
        (json.dumps(ENTRIES | {"more": 1}).encode(), "has no use for these entries: more[.]"),
    ]:
        path.write_bytes(content)
        refused(path, message)
    refused(tmp_path / "nowhere.json", "cannot be read: .*No such file")


def step(u: jax.Array, _: Any) -> tuple[jax.Array, None]:
    return jnp.sin(u), None


def test_a_gradient_says_that_the_profile_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It once had one checkpoint then, and took a number of steps quadratic in the length."""

    loss = lambda u: jnp.sum(checkpointed_scan(step, u, None, 60)[0])  # noqa: E731
    path = write({k: v for k, v in ENTRIES.items() if k != "byte"}, tmp_path / "damaged.json")
    monkeypatch.setenv(in_force.VARIABLE, str(path))
    with pytest.raises(ValueError, match="lacks these entries: byte"):
        jax.grad(loss)(jnp.ones(3))


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


def test_the_profile_in_force(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one that the environment names, or the platform's."""
    named = replace(CPU, origin="named")
    monkeypatch.setenv(in_force.VARIABLE, str(write(asdict(named), tmp_path / "named.json")))
    assert in_force.profile_in_force() == named
    monkeypatch.setenv(in_force.VARIABLE, "")
    assert in_force.profile_in_force() == CPU
    monkeypatch.delenv(in_force.VARIABLE)
    assert in_force.profile_in_force() == CPU
    assert in_force.profile_of_platform() == CPU


def test_plans_follow_the_profile() -> None:
    """Where loops whose end depends on data wait for the host, light steps get a plan without."""
    sizes = Sizes(4000, 4000, 4000, 4000, work=100.0)
    memory = 100 * 4000
    waiting = sizes._replace(profile=replace(CPU, waiting=10_000.0))
    by_default, other = (quickest(1000, s, memory) for s in (sizes, waiting))
    assert other.static_levels
    heavy = waiting._replace(work=1e9)
    assert quickest(1000, heavy, memory).evaluations <= other.evaluations
    assert cost.time(other, waiting) < cost.time(Plan(1000, 20, 1), waiting)
    assert by_default.length == other.length


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


def estimate(fun: Any, *shapes: tuple[int, ...]) -> float:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return work.work_of(jax.make_jaxpr(fun)(*arguments), CPU)


PRODUCT = CPU.product_operation
LOOP = lambda x: lax.scan(lambda x, _: (jnp.sin(x), None), x, None, 7)[0]  # noqa: E731


@pytest.mark.parametrize(
    ("fun", "shapes", "expected"),
    [
        (jnp.matmul, [(3, 4), (4, 5)], CPU.kernel + 2 * 3 * 4 * 5 * PRODUCT),
        (
            lambda x, k: lax.conv(x, k, (1, 1), "SAME"),
            [(1, 3, 8, 8), (5, 3, 2, 2)],
            CPU.kernel + 2 * (5 * 8 * 8) * (3 * 2 * 2) * PRODUCT,
        ),
        (lambda x: x + x, [(100,)], 400 * CPU.byte),
        (jnp.sum, [(100,)], 400 * CPU.byte),
        (jnp.tanh, [(100,)], 400 * CPU.transcendental_byte),
        (jnp.sin, [(100,)], 400 * CPU.slow_byte),
        (jax.jit(jnp.sin), [(100,)], 400 * CPU.slow_byte),
        (LOOP, [(100,)], 7 * 400 * CPU.slow_byte),
        (lambda x: x.reshape(10, 10), [(100,)], 0),
    ],
)
def test_the_work_of_a_step(fun: Any, shapes: Any, expected: float) -> None:
    assert estimate(fun, *shapes) == pytest.approx(expected)


def test_of_branches_the_longest_counts() -> None:
    def branches(x: Any) -> Any:
        return lax.cond(x[0] > 0, jnp.sin, lambda x: jnp.sin(jnp.sin(x)), x)

    twice = 2 * 400 * CPU.slow_byte
    assert twice <= estimate(branches, (100,)) <= 1.1 * twice
