"""One thing changes between two calls of `host_scan` with one directory: the second is refused, or
returns what a run from the beginning returns. Never another run's result."""

import random
import shutil
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_host_scan_resume import Ended, bits, contents, ends_at

from jax_revolve import HostMemory, checkpointed_scan, host_scan, plan

TABLE = np.ones(4)


class Solver:
    """An object with a method that a callback is."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def run(self, u: Any) -> Any:
        return np.asarray(u) * self.scale


@dataclass(frozen=True)
class Run:
    """A run of `host_scan`. Each field has these values."""

    weight: float = 1.0
    start: float = 0.5
    table_in_jit: float = 1.0
    table_in_scan: float = 1.0
    table_in_branch: float = 1.0
    rule: float = 2.0
    rule_table: float = 2.0
    rule_argument: float = 2.0
    forward_rule: float = 2.0
    rule_in_loop: float = 2.0
    callback_closure: float = 3.0
    callback_default: float = 3.0
    callback_partial: float = 3.0
    callback_global: float = 1.0
    callback_object: float = 3.0
    callback_code: str = "times"
    callback_helper: str = "times"
    callback_cached: float = 3.0
    operation: str = "tanh"
    xs: str = "function"
    x_closure: float = 1.0
    x_default: float = 1.0
    x_code: str = "sin"
    x_last: float = 1.0
    width: int = 4
    dtype: str = "float64"
    length: int = 6
    reverse: bool = False
    checkpoints: int | None = 2
    storage: Any = None
    memory: int | None = None
    plan: Any = None
    derivative: str = "both"
    cotangent: float = 1.0
    consumed: bool = False
    devices: str = "one"
    version: int | None = None

    def options(self) -> dict[str, Any]:
        if self.plan is not None:
            return {"plan": plan(self.length, self.plan, block_size=1)}
        if self.memory is not None:
            return {"memory": self.memory}
        return {"checkpoints": self.checkpoints, "storage": self.storage}


CHANGES: dict[str, tuple[Any, ...]] = {
    "weight": (1.25,),
    "start": (0.75,),
    "table_in_jit": (1.5,),
    "table_in_scan": (1.5,),
    "table_in_branch": (1.5,),
    "rule": (2.5,),
    "rule_table": (2.5,),
    "rule_argument": (2.5,),
    "forward_rule": (2.5,),
    "rule_in_loop": (2.5,),
    "callback_closure": (3.5,),
    "callback_default": (3.5,),
    "callback_partial": (3.5,),
    "callback_global": (1.5,),
    "callback_object": (3.5,),
    "callback_code": ("plus",),
    "callback_helper": ("plus",),
    "callback_cached": (3.5,),
    "operation": ("sin",),
    "xs": ("array", "jax"),
    "x_closure": (1.5,),
    "x_default": (1.5,),
    "x_code": ("cos",),
    "x_last": (1.5,),
    "width": (8,),
    "dtype": ("float32",),
    "length": (7,),
    "reverse": (True,),
    "checkpoints": (1, 3, None),
    "storage": (HostMemory(checkpoints=2, transfer=0.5),),
    "memory": (300,),
    "plan": (1, 2),
    "derivative": ("weight", "start", "none"),
    "cotangent": (-1.0,),
    "consumed": (True,),
    "devices": ("mesh", "reversed"),
    "version": (1, 2),
}


def times(u: Any) -> Any:
    return np.asarray(u) * 2


def plus(u: Any) -> Any:
    return np.asarray(u) + 2


def on_host(function: Any) -> Any:
    """As a function of JAX, whose derivative is taken to be 1."""

    @jax.custom_vjp
    def run(u: Any) -> Any:
        like = jax.ShapeDtypeStruct(u.shape, u.dtype)
        return jax.pure_callback(lambda u: np.asarray(function(u), u.dtype), like, u)

    run.defvjp(lambda u: (run(u), None), lambda _, ct: (ct,))
    return run


def callbacks(run: Run) -> list[Any]:
    closure, helper = run.callback_closure, {"times": times, "plus": plus}[run.callback_helper]

    def of_default(u: Any, by: float = run.callback_default) -> Any:
        return np.asarray(u) * by

    @lru_cache
    def cached() -> float:
        return run.callback_cached

    codes = {"times": lambda u: np.asarray(u) * 2, "plus": lambda u: np.asarray(u) + 2}
    return [
        lambda u: np.asarray(u) * closure,
        lambda u: of_default(u),
        partial(lambda by, u: np.asarray(u) * by, run.callback_partial),
        lambda u: np.asarray(u) * TABLE[0],
        Solver(run.callback_object).run,
        codes[run.callback_code],
        lambda u: helper(u),
        lambda u: np.asarray(u) * cached(),
    ]


def with_rules(run: Run) -> Any:
    """Identities, with factors in their backward rules."""
    rule, table = run.rule, np.full(1, run.rule_table, run.dtype)

    def identity(backward: Any) -> Any:
        same = jax.custom_vjp(lambda u: u)
        same.defvjp(lambda u: (u, None), lambda _, ct: (backward(ct),))
        return same

    known = partial(jax.custom_vjp, nondiff_argnums=(1,))(lambda u, by: u)
    known.defvjp(lambda u, by: (u, None), lambda by, _, ct: (by * ct,))

    @jax.custom_jvp
    def forward(u: Any) -> Any:
        return u

    forward.defjvp(lambda u, du: (u[0], run.forward_rule * du[0]))
    by_number, by_table = identity(lambda ct: rule * ct), identity(lambda ct: table * ct)
    inner = identity(lambda ct: run.rule_in_loop * ct)

    def all_of_them(u: Any) -> Any:
        u = forward(known(by_table(by_number(u)), run.rule_argument))
        return checkpointed_scan(lambda u, _: (inner(u), None), u, length=2, checkpoints=1)[0]

    return all_of_them


def xs_of(run: Run) -> Any:
    closure, last = run.x_closure, run.x_last
    wave = {"sin": lambda i: np.sin(i), "cos": lambda i: np.cos(i)}[run.x_code]

    def read(i: int, by: float = run.x_default) -> Any:
        x = wave(0.0 if i == 0 else 1.0 * i) if i else 0.0  # the same first slice
        factor = (closure * by if i else 1.0) * (last if i == run.length - 1 else 1.0)
        return np.full(run.width, x * factor, run.dtype)

    if run.xs == "function":
        return read
    xs = np.stack([read(i) for i in range(run.length)])
    return jnp.asarray(xs) if run.xs == "jax" else xs


@cache
def sharding(devices: str) -> Any:
    order = jax.devices()[:4] if devices == "mesh" else jax.devices()[3::-1]
    return None if devices == "one" else NamedSharding(Mesh(np.array(order), ("a",)), P("a"))


def result(run: Run, directory: Path) -> bytes:
    """The bits of a value or of a gradient."""
    TABLE[0] = run.callback_global
    called, identities = list(map(on_host, callbacks(run))), with_rules(run)
    in_jit, in_scan, in_branch = (
        np.full(run.width, by, run.dtype)
        for by in (run.table_in_jit, run.table_in_scan, run.table_in_branch)
    )
    look = jax.jit(lambda u: u * in_jit)
    inner = jax.jit(lambda u, _: (jax.jit(lambda u: u * in_scan)(u), None))
    operation = {"tanh": jnp.tanh, "sin": jnp.sin}[run.operation]

    def total(weight: Any, start: Any) -> Any:
        def step(u: Any, x: Any) -> Any:
            u = jax.lax.scan(inner, look(u), length=2)[0]
            u = jax.lax.cond(x[0] < 9, lambda u: u * in_branch, lambda u: u, u)
            if run.devices == "one":
                u = sum(f(u) for f in called) / len(called)
            u = operation(weight * identities(u)) + x
            return u, jnp.sum(u)

        consume = (lambda i, y: None) if run.consumed else None
        u, ys = host_scan(
            step,
            start,
            xs_of(run),
            run.length,
            run.reverse,
            directory=directory,
            save_every=0,
            version=run.version,
            consume=consume,
            **run.options(),
        )
        return run.cotangent * (jnp.sum(u**2) + (0 if run.consumed else jnp.sum(ys)))

    arguments = jnp.asarray(run.weight, run.dtype), jnp.full(run.width, run.start, run.dtype)
    if sharding(run.devices) is not None:
        arguments = arguments[0], jax.device_put(arguments[1], sharding(run.devices))
    if run.derivative == "none":
        return bits(total(*arguments))
    which = {"both": (0, 1), "weight": (0,), "start": (1,)}[run.derivative]
    return bits(jax.value_and_grad(total, which)(*arguments))


BASES = 12


def base_of(seed: int) -> Run:
    """A run, a part of whose fields have other values than by default."""
    draw = random.Random(seed)
    run = Run()
    for name in ("xs", "operation", "reverse", "checkpoints", "storage", "devices", "derivative"):
        if seed and draw.random() < 0.4:
            run = replace(run, **{name: draw.choice(CHANGES[name])})
    return run


def changed_runs(base: Run) -> list[Run]:
    """Those that differ from a run in one field."""
    values = {**CHANGES, **{f.name: (*CHANGES[f.name], f.default) for f in fields(Run)}}
    return [
        replace(base, **{name: value})
        for name, possible in values.items()
        for value in possible
        if value != getattr(base, name)
    ]


def check_changes(seed: int, some: slice, monkeypatch: Any, tmp_path: Path) -> int:
    """The first call ends somewhere, or not at all. Returns how many calls are refused."""
    base, begun = base_of(seed), tmp_path / "begun"
    with ends_at((None, 60, 150)[seed % 3], monkeypatch) as events:
        try:
            result(base, begun)
        except Ended:
            assert len(events) > 60
    refused = 0
    for number, run in enumerate(changed_runs(base)[some]):
        directory = tmp_path / str(number)
        shutil.copytree(begun, directory)
        try:
            found = result(run, directory)
        except ValueError as error:
            assert "has another run" in str(error) or "memory must be at least" in str(error)  # noqa: PT017
            assert contents(directory).keys() == {
                directory / path.relative_to(begun) for path in contents(begun)
            }
            refused += 1
        else:
            assert found == result(run, tmp_path / f"fresh-{number}"), run
    expected = result(base, tmp_path / "whole")
    assert result(base, begun) == expected
    return refused


@pytest.mark.parametrize("seed", [0])
def test_a_change_is_refused(seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_changes(seed, slice(5, None, 9), monkeypatch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(BASES))
def test_each_change_is_refused(seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = base_of(seed)
    refused = check_changes(seed, slice(None), monkeypatch, tmp_path)
    print(f"{refused} of {len(changed_runs(base))} changes of {base} are refused")
    assert refused


def test_over_three_hundred_changes() -> None:
    assert sum(len(changed_runs(base_of(seed))) for seed in range(BASES)) > 300
