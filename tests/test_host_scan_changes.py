"""One thing changes between two calls of `host_scan` with one directory: the second is refused, or
returns what a run from the beginning returns. Never another run's result."""

import random
import shutil
from functools import cache, lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
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


FIELDS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("table_in_jit", "table_in_scan", "table_in_branch"), (1.0, 1.5)),
    **dict.fromkeys(
        ("rule", "rule_table", "rule_argument", "forward_rule", "rule_in_loop"), (2.0, 2.5)
    ),
    **dict.fromkeys(("callback_closure", "callback_default", "callback_partial"), (3.0, 3.5)),
    **dict.fromkeys(("callback_object", "callback_cached"), (3.0, 3.5)),
    **dict.fromkeys(("callback_code", "callback_helper"), ("times", "plus")),
    **dict.fromkeys(("callback_global", "x_closure", "x_default", "x_last"), (1.0, 1.5)),
    "x_code": ("sin", "cos"),
    "xs": ("function", "array", "jax"),
    "operation": ("tanh", "sin"),
    "weight": (1.0, 1.25),
    "start": (0.5, 0.75),
    "width": (4, 8),
    "dtype": ("float64", "float32"),
    "length": (6, 7),
    "reverse": (False, True),
    "checkpoints": (2, 1, 3, None),
    "storage": (None, HostMemory(checkpoints=2, transfer=0.5)),
    "memory": (None, 300),
    "plan": (None, 1, 2),
    "derivative": ("both", "weight", "start", "none"),
    "cotangent": (1.0, -1.0),
    "consumed": (False, True),
    "devices": ("one", "mesh", "reversed"),
    "version": (None, 1, 2),
}
"""What makes a run of `host_scan`, and its values, the default first."""

Run = SimpleNamespace
"""A run: a value for each of these."""


def options_of(run: Run) -> dict[str, Any]:
    if run.plan is not None:
        return {"plan": plan(run.length, run.plan, block_size=1)}
    if run.memory is not None:
        return {"memory": run.memory}
    return {"checkpoints": run.checkpoints, "storage": run.storage}


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
            **options_of(run),
        )
        return run.cotangent * (jnp.sum(u**2) + (0 if run.consumed else jnp.sum(ys)))

    arguments = jnp.asarray(run.weight, run.dtype), jnp.full(run.width, run.start, run.dtype)
    if sharding(run.devices) is not None:
        arguments = arguments[0], jax.device_put(arguments[1], sharding(run.devices))
    if run.derivative == "none":
        return bits(total(*arguments))
    which = {"both": (0, 1), "weight": (0,), "start": (1,)}[run.derivative]
    return bits(jax.value_and_grad(total, which)(*arguments))


def base_of(seed: int) -> Run:
    """A run, a part of whose fields have other values than by default."""
    draw = random.Random(seed)
    values = {name: default for name, (default, *_) in FIELDS.items()}
    for name in ("xs", "operation", "reverse", "checkpoints", "storage", "devices", "derivative"):
        if seed and draw.random() < 0.4:
            values[name] = draw.choice(FIELDS[name][1:])
    return Run(**values)


def changed_runs(base: Run) -> list[Run]:
    """Those that differ from a run in one field."""
    return [
        Run(**{**vars(base), name: value})
        for name, values in FIELDS.items()
        for value in values
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


@pytest.mark.parametrize(
    ("seed", "some"),
    [
        (0, slice(5, None, 9)),
        *(pytest.param(i, slice(None), marks=pytest.mark.slow) for i in range(12)),
    ],
)
def test_a_change_is_refused(
    seed: int, some: slice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every ninth of some fifty changes here, and over three hundred in the slow tests."""
    assert check_changes(seed, some, monkeypatch, tmp_path)
