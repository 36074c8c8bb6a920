"""`fit`: the search, on programs that are made up, and what it finds for compiled ones."""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from math import inf, log
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jax_revolve import checkpointed_chain, checkpointed_scan, fit
from jax_revolve.integrations.diffrax import RevolveAdjoint
from jax_revolve.programs import fit as module
from jax_revolve.programs.fit import MOST_COMPILED, UNLIMITED, _Attempt, _Search
from jax_revolve.typing import Fitted

pytestmark = pytest.mark.usefixtures("default_precision")

LENGTH, WIDTH = 200, 500
LEAST = 3000
STATE = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)


class MadeUp(_Search):
    """Programs whose bytes are a function of their budget."""

    least = LEAST  # pyright: ignore[reportAssignmentType]

    def __init__(self, size: Callable[[int], float], limit: int) -> None:
        super().__init__(lambda memory: len, (), limit, lambda share, now: None)
        self.size = size

    def attempt(self, memory: int) -> _Attempt:
        assert memory >= self.least
        size = self.size(memory)
        known = self.known.setdefault(str(size), _Attempt(memory, size, 500, str(size)))
        return known._replace(memory=memory)


def rounded(budget: float, to: float) -> int:
    """Plans take less than their budget."""
    return int(to ** int(log(budget * 1.0000001, to)))


MOST = 10**8
SIZES: dict[str, Callable[[int], float]] = {
    "as large as the budget": lambda b: 1000 + min(b, MOST),
    "much that no budget covers": lambda b: 10**7 + min(b, MOST),
    "in steps": lambda b: 10**5 + rounded(min(b, MOST), 1.05),
    "the budget twice": lambda b: 1000 + 2 * min(b, MOST),
    "the budget a hundred times": lambda b: 1000 + 100 * min(b, MOST),
    "half of the budget": lambda b: 1000 + min(b, MOST) // 2,
}
JUMPS: dict[str, Callable[[int], float]] = {
    "one jump": lambda b: 10**4 if b < 10**6 else MOST,
    "many jumps": lambda b: 10**4 + rounded(min(b, MOST), 3),
    "too large for the compiler": lambda b: 1000 + b if b < 10**7 else inf,
    "its square": lambda b: 1000 + min(b, 10**5) ** 2 // 100,
    "a slope and a jump": lambda b: 10**4 + (b if b < 10**5 else MOST),
}
LIMITS = [int(5000 * 1.013**k) for k in range(800)]


def found(size: Callable[[int], float], limit: int) -> Fitted | None:
    try:
        return MadeUp(size, limit).result()
    except ValueError:
        assert size(LEAST) > limit
        return None


@pytest.mark.parametrize("name", [*SIZES, *JUMPS])
def test_a_limit_is_used_in_few_compilations(name: str) -> None:
    """What counts is the share of what is free, beyond the program with the least budget."""
    size = (SIZES | JUMPS)[name]
    fitted = [f for limit in LIMITS if (f := found(size, limit)) is not None]
    assert all(f.bytes <= f.limit for f in fitted)
    assert all(len(f.attempts) <= MOST_COMPILED for f in fitted)
    assert all(size(f.memory) == f.bytes == float(f.compiled) for f in fitted)
    if name in SIZES:  # the limit is used
        least = size(LEAST)
        limited = [f for f in fitted if size(UNLIMITED) > f.limit > 1.2 * least]
        assert len(limited) > 50
        shares = sorted((f.bytes - least) / (f.limit - least) for f in limited)
        assert shares[len(shares) // 20] >= 0.9
        assert shares[0] >= 0.7
        assert sum(len(f.attempts) <= 4 for f in limited) > 0.8 * len(limited)


def step(u: Any) -> Any:
    return jnp.sin(u) + 0.1 * jnp.roll(u, 1) * jnp.cos(u)


def scanned(memory: int, length: int = LENGTH) -> Any:
    scan = partial(checkpointed_scan, lambda u, _: (step(u), None), length=length, memory=memory)
    return jax.grad(lambda u: jnp.sum(scan(u)[0]))


def layers(memory: int) -> Any:
    listed = [eqx.nn.Lambda(step)] * 12
    return jax.grad(lambda u: jnp.sum(checkpointed_chain(listed, u, memory=memory)))


def solve(memory: int) -> Any:
    diffrax = importlib.import_module("diffrax")
    term = diffrax.ODETerm(lambda t, u, args: step(u) - u)
    times = {"t0": 0.0, "t1": 2.0, "dt0": 0.01, "max_steps": LENGTH}
    how = {"adjoint": RevolveAdjoint(memory=memory), **times}
    run = partial(diffrax.diffeqsolve, term, diffrax.Tsit5(), throw=False, **how)
    return jax.grad(lambda u: jnp.sum(run(y0=u).ys))


@pytest.mark.parametrize(
    ("make", "limit", "least_share"),
    [
        (scanned, 100_000, 0.857),
        (layers, 45_000, 0.8),
        pytest.param(solve, 300_000, 0.857, marks=pytest.mark.slow),
    ],
)
def test_the_program_fits_and_is_right(make: Any, limit: int, least_share: float) -> None:
    u = jnp.linspace(0.0, 1.0, WIDTH, dtype=jnp.float32)
    fitted = fit(make, limit)(u)
    sizes = jax.jit(make(fitted.memory)).lower(u).compile().memory_analysis()
    assert sizes is not None
    shown = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    assert shown <= fitted.bytes <= shown + 1000  # Diffrax's step closes over its tables
    assert least_share * limit < fitted.bytes <= limit < fitted.attempts[UNLIMITED]
    assert len(fitted.attempts) <= MOST_COMPILED
    assert jnp.allclose(fitted.compiled(u), make(UNLIMITED)(u), atol=1e-6)


def test_what_fits_without_a_limit_is_compiled_once(capsys: pytest.CaptureFixture[str]) -> None:
    fitted = fit(scanned, "1GB", progress=True)(STATE)
    assert fitted.attempts == {UNLIMITED: fitted.bytes}
    assert str(fitted).startswith("memory=unlimited: the program takes ")
    assert "1 GB." in str(fitted)
    assert "100%" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tqdm", None)
        patch.setitem(sys.modules, "tqdm.auto", None)
        assert fit(scanned, "1GB", progress=True)(STATE).bytes == fitted.bytes
    assert capsys.readouterr() == ("", "")


def test_a_limit_that_is_too_small_says_what_is_needed() -> None:
    with pytest.raises(ValueError, match=r"4000 are arguments, results and closed") as info:
        fit(scanned, 0)(STATE)
    least = int(str(info.value).split()[5])
    assert fit(scanned, least)(STATE).bytes == least
    with pytest.raises(ValueError, match=f"^limit must be at least {least} bytes here, but is"):
        fit(scanned, least - 1)(STATE)
    with pytest.raises(ValueError, match="no budget changes that: the function that make returns"):
        fit(lambda memory: jnp.sin, 1)(STATE)


def test_which_bytes_count() -> None:
    """Donated arguments once, arrays that are closed over, and those of one device."""
    constant = jnp.arange(WIDTH, dtype=jnp.float32)
    functions = jnp.sin, jax.jit(jnp.sin, donate_argnums=0), lambda u: u + constant
    taken = [fit(lambda memory, f=f: f, "1GB")(STATE).bytes for f in functions]
    assert taken == [8 * WIDTH, 4 * WIDTH, 12 * WIDTH]
    sharding = NamedSharding(jax.make_mesh((8,), ("devices",)), PartitionSpec("devices"))
    state = jax.ShapeDtypeStruct((8 * WIDTH,), jnp.float32, sharding=sharding)
    assert fit(lambda memory: jnp.sin, "1GB")(state).bytes == taken[0]


def test_the_compiler_may_run_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    compile = jax.stages.Lowered.compile
    failing = iter([True])

    def compile_or_fail(lowered: Any, *args: Any, **kwargs: Any) -> Any:
        if next(failing, False):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: as on a TPU")
        return compile(lowered, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_or_fail)
    fitted = fit(scanned, 100_000)(STATE)
    assert fitted.attempts[UNLIMITED] == inf
    assert 0.857 * 100_000 < fitted.bytes <= 100_000


def test_by_default_the_limit_is_what_the_device_has_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "usable_bytes", lambda args: 100_000)
        assert fit(scanned)(STATE).limit == 100_000
    shown = tmp_path / "meminfo"
    monkeypatch.setattr(module, "MEMINFO", shown)
    with pytest.raises(ValueError, match=r"^limit must be given: .* does not report its free"):
        fit(scanned)(STATE)
    shown.write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    held = jnp.ones(100, dtype=jnp.float32)
    assert module.usable_bytes((STATE,)) == int(0.9 * 1024 * 1000)
    assert module.usable_bytes({"held": held}) == int(0.9 * (1024 * 1000 + 400))


def test_what_make_must_be() -> None:
    """A gradient in its place was given the budget, which is too large for an int32."""
    wrong: Any
    expected = r"^make must be a function from a budget .* but make\("
    for wrong in (jax.grad(jnp.sum), jnp.sum, lambda: jnp.sum, lambda memory: memory):
        with pytest.raises(TypeError, match=expected):
            fit(wrong, "1MB")(STATE)


@pytest.mark.parametrize(
    ("make", "options", "error", "match"),
    [
        (3, {}, TypeError, "make must be a function from a number of bytes to a function, but is"),
        (scanned, {"limit": "much"}, ValueError, "limit must be an int >= 0 of bytes or a string"),
        (scanned, {"limit": -1}, ValueError, "limit must be an int >= 0 of bytes .* but is -1"),
        (scanned, {"limit": 1.5}, TypeError, "limit must be an int >= 0 of bytes .* type float"),
        (scanned, {"progress": 1}, TypeError, "progress must be True or False, but is 1 of type"),
    ],
)
def test_arguments_that_are_wrong(make: Any, options: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=f"^{match}"):
        fit(make, **options)
