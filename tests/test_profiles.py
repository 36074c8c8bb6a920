"""What devices take, as data: reading it, measuring it, and choosing plans by it."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_revolve import Plan, explain_scan
from jax_revolve.__main__ import main
from jax_revolve.calibration import calibrate, command, transfers
from jax_revolve.calibration.fit import FITTED, Sample, fitted, predictions, rank_correlation
from jax_revolve.calibration.workloads import Workload, plans, workloads
from jax_revolve.profiles import in_force
from jax_revolve.profiles.profile import CPU, FOLDER, NUMBERS, Profile, of_platform, read, write
from jax_revolve.schedule import cost
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.selection import quickest

GPU = of_platform("gpu")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_profiles_of_the_package(path: Path, tmp_path: Path) -> None:
    """Written again they are the same files."""
    profile = read(path)
    assert profile.device == path.stem
    write(profile, tmp_path / "new" / "copy.json")
    assert (tmp_path / "new" / "copy.json").read_text() == path.read_text()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["copy.json"]


def test_a_platform_without_a_profile() -> None:
    found = of_platform("rocm")
    assert replace(found, origin=CPU.origin) == CPU
    assert str(found).endswith("there is none for the platform rocm)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be a profile in JSON"),
        ("[]", "must have the entries block, byte, .* but has list"),
        (json.dumps(asdict(CPU) | {"more": 1}), "calibrate"),
        (
            json.dumps({k: v for k, v in asdict(CPU).items() if k != "byte"}),
            "must have the entries",
        ),
        (json.dumps(asdict(CPU) | {"byte": -1}), "byte in .* must be a number >= 0, but is -1"),
        (json.dumps(asdict(CPU) | {"byte": True}), "but is True"),
        (json.dumps(asdict(CPU) | {"byte": float("inf")}), "but is inf"),
        (json.dumps(asdict(CPU) | {"byte": "1"}), "but is '1'"),
    ],
)
def test_a_file_that_is_no_profile(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read(path)


def test_the_profile_in_force(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one that the environment names; the measured one; the platform's."""
    named, measured = replace(CPU, origin="named"), replace(CPU, origin="measured")
    write(named, tmp_path / "named.json")
    monkeypatch.setattr(in_force, "file_of", lambda kind: tmp_path / f"{in_force.slug(kind)}.json")
    monkeypatch.setenv(in_force.VARIABLE, str(tmp_path / "named.json"))
    assert in_force.profile_in_force() == named
    for origin, expected in ((CPU, None), (measured, measured)):
        in_force._profile.cache_clear()  # pyright: ignore[reportPrivateUsage]
        if expected is not None:
            write(expected, tmp_path / "cpu.json")
        monkeypatch.delenv(in_force.VARIABLE, raising=False)
        assert in_force.profile_in_force() == (expected or origin)
    assert in_force.profile_of_platform() == CPU


def test_the_file_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    path = in_force.file_of("NVIDIA H100 80GB HBM3")
    assert path is not None
    assert path.parts[-3:] == ("jax_revolve", "profiles", "nvidia-h100-80gb-hbm3.json")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert in_force.file_of("cpu") is None


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
        return explain_scan(step, jnp.ones(100), length=10).sizes

    before = sizes()
    monkeypatch.setattr(in_force, "_profile", lambda *_: GPU)
    after = sizes()
    assert (after.profile, before.profile) == (GPU, CPU)
    assert after.work != before.work
    for name in ("checkpoint", "residuals", "alone", "again", "factors"):
        assert getattr(after, name) == getattr(before, name)


TRUE = replace(CPU, product_operation=0.03, byte=0.02, evaluation=300.0, held_byte=0.2, reused=8e6)


def samples(profile: Profile) -> list[Sample]:
    """Times that follow the profile exactly, and something for each loop in addition."""
    found: list[Sample] = []
    for number, work in enumerate([(1e5, 0.0), (0.0, 4e5), (3e4, 8e4)]):

        def predicted(profile: Profile, plan: Plan, work: Any = work) -> float:
            nanoseconds = work[0] * profile.product_operation + work[1] * profile.byte
            sizes = Sizes(40_000, 80_000, 80_000, 40_000, work=nanoseconds, profile=profile)
            return cost.time(plan, sizes)

        for plan in plans(400):
            taken = predicted(profile, plan) + 1e6 * number
            one = lambda p, plan=plan, predicted=predicted: predicted(p, plan)  # noqa: E731
            found.append(Sample(str(number), str(plan), one, taken))
    return found


def test_a_profile_is_found_from_its_times() -> None:
    found = fitted(samples(TRUE), CPU)
    taken = [sample.taken for sample in samples(TRUE)]
    np.testing.assert_allclose(predictions(samples(TRUE), found), taken, rtol=0.03)
    assert rank_correlation(samples(TRUE), found) > 0.99 > rank_correlation(samples(TRUE), CPU)
    assert found.reused == TRUE.reused


def test_what_times_do_not_tell_stays() -> None:
    found = fitted(samples(CPU), CPU)
    assert found.slow_byte == pytest.approx(CPU.slow_byte, rel=0.01)
    assert all(getattr(found, name) >= 0 for name in NUMBERS)
    assert {*NUMBERS} - {*FITTED} == {
        *("reused", "saved_byte", "host_transfer", "host_byte", "disk_transfer", "disk_byte")
    }


def tiny(_: str) -> list[Workload]:
    return [w._replace(init=w.init[..., :8], length=16) for w in workloads("cpu")[:2]]


def test_calibrate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "workloads", tiny)
    monkeypatch.setattr(transfers, "MANY", 2**14)
    file = tmp_path / "profile.json"
    assert main(["calibrate", "--seconds", "2", "--output", str(file)]) == 0
    out = capsys.readouterr().out
    assert "few numbers" in out
    assert "Rank correlation" in out
    assert f"Written: {file}" in out
    profile = read(file)
    assert profile.device == jax.devices()[0].device_kind
    assert jax.__version__ in profile.origin
    assert profile.disk_transfer > 0


def test_without_a_place_for_the_profile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "file_of", lambda _: None)
    assert main(["calibrate"]) == 2
    assert 'pip install "jax_revolve[calibrate]"' in capsys.readouterr().err
    assert main(["calibrate", "--seconds", "0"]) == 2
    assert "seconds must be > 0, but is 0" in capsys.readouterr().err
