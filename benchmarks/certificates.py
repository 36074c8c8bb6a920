"""Gradients that are wrong on purpose, in float32: their bytes, their evaluations, and how wrong
they are, certified and in truth; and what checkpoints of 8 bits are worth at equal bytes."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import diffrax
import jax
import jax.flatten_util
import jax.numpy as jnp
from jax import lax

from benchmarks.report.results import Results, find
from benchmarks.report.table import Table
from benchmarks.runner.benchmark import Benchmark, Measurement
from benchmarks.runner.programs import Record, sum_of_squares
from benchmarks.runner.timing import seconds
from benchmarks.workloads import inverses
from jax_revolve import Compressed, Inverse, certify, checkpointed_scan, plan

KEYS = 5
"""The certificates of each gradient, each with 8 probes."""
CHECKPOINTS = 20


class Program(NamedTuple):
    """`length` steps from `init`, and the same as a differential equation, solved in so many steps
    of `dt`. `back` undoes a step."""

    step: Callable[[Any, Any, Any], Any]
    back: Callable[[Any, Any, Any], Any]
    field: Callable[[Any, Any, Any], Any]
    parameters: Any
    init: Any
    start: Any
    length: int
    dt: float
    solver: Any
    xs: Any = None


def wave(width: int, length: int) -> Program:
    """The speed is unknown in each place."""
    step, back, speed, init, _ = inverses.wave(width)

    def field(_: Any, y: Any, c: Any) -> Any:
        u, v = y
        near = sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1))
        return v, c * (near - 4 * u)

    start = init[0], jnp.zeros_like(init[0])
    return Program(step, back, field, speed, init, start, length, 1.0, diffrax.Tsit5())


def lorenz(size: int, length: int, dt: float = 0.01) -> Program:
    """Lorenz-96 by the method of Runge and Kutta; the forcing is unknown in each place. `back` is a
    step of `-dt`. Errors grow by about 5 in a unit of time, so the horizon of float32 is at about
    10."""

    def field(_: Any, u: Any, forcing: Any) -> Any:
        return (jnp.roll(u, -1) - jnp.roll(u, 2)) * jnp.roll(u, 1) - u + forcing

    def step(p: Any, u: Any, _: Any, dt: float = dt) -> Any:
        k1 = field(0, u, p)
        k2 = field(0, u + 0.5 * dt * k1, p)
        k3 = field(0, u + 0.5 * dt * k2, p)
        return u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + field(0, u + dt * k3, p))

    back = partial(step, dt=-dt)
    start = 8 + jnp.sin(jnp.arange(size, dtype=jnp.float32))
    forcing = jnp.full(size, 8.0)
    return Program(step, back, field, forcing, start, start, length, dt, diffrax.Tsit5())


def gru(width: int, length: int) -> Program:
    """A gated recurrent unit, which is Euler's method with steps of 1. Its inverse is a fixed-point
    iteration."""
    keys = jax.random.split(jax.random.key(0), 3)
    w, v = (jax.random.normal(k, (width, 3 * width)) / width**0.5 for k in keys[:2])
    xs = jax.random.normal(keys[2], (length, 8, width))
    bias = jnp.repeat(jnp.array([2.0, 0.0, 0.0]), width)

    def change(p: Any, h: Any, x: Any) -> Any:
        of_h, of_x = h @ p["w"], x @ p["v"] + p["b"]
        keep, reset, new = jnp.split(of_x, 3, -1)
        h_keep, h_reset, h_new = jnp.split(of_h, 3, -1)
        new = jnp.tanh(new + jax.nn.sigmoid(reset + h_reset) * h_new)
        return (1 - jax.nn.sigmoid(keep + h_keep)) * (new - h)

    def back(p: Any, after: Any, x: Any) -> Any:
        return lax.fori_loop(0, 12, lambda _, h: after - change(p, h, x), after)

    def field(t: Any, h: Any, p: Any) -> Any:
        return change(p, h, xs[jnp.clip(jnp.round(t).astype(int), 0, length - 1)])

    parameters, init = {"w": 0.5 * w, "v": v, "b": bias}, jnp.zeros((8, width))
    step = lambda p, h, x: h + change(p, h, x)  # noqa: E731
    return Program(step, back, field, parameters, init, init, length, 1.0, diffrax.Euler(), xs)


SYSTEMS: dict[str, Callable[[int], Program]] = {
    "wave": partial(wave, length=300),
    "Lorenz-96, 2 units of time": partial(lorenz, length=200),
    "Lorenz-96, 20 units of time": partial(lorenz, length=2000),
    "GRU": partial(gru, length=300),
}
SIZES = {name: (16, 32, 64) if name != "wave" else (12, 24, 48) for name in SYSTEMS}
EXACT = "exact"


def _call(count: Callable[[], None], _: Any) -> None:
    """A callback that depends on nothing in the loop would run once."""
    count()


def loss(program: Program, p: Any, scan: Any, count: Callable[[], None] | None = None) -> Any:
    """Of the end. `count` is called in each step."""

    def step(carry: Any, x: Any) -> Any:
        if count is not None:
            jax.debug.callback(partial(_call, count), jax.tree.leaves(carry)[0])
        return program.step(p, carry, x), None

    end = scan(step, program.init, program.xs, length=program.length)[0]
    return sum_of_squares(end[0] if isinstance(end, tuple) else end)


def truncated(f: Any, init: Any, xs: Any, length: int) -> Any:
    """Through the last quarter of the steps alone."""
    first = length * 3 // 4
    early, late = (
        jax.tree.map(lambda x, at=at: x[at], xs) for at in (slice(first), slice(first, None))
    )
    middle = lax.scan(f, init, early, length=first)[0]
    return lax.scan(f, lax.stop_gradient(middle), late, length=length - first)


def ways(program: Program) -> dict[str, Callable[..., Any]]:
    """Functions from parameters, and what to call in each step, to losses."""

    def solved(p: Any, count: Any = None) -> Any:
        def field(t: Any, y: Any, p: Any) -> Any:
            if count is not None:
                jax.debug.callback(partial(_call, count), t)
            return program.field(t, y, p)

        end = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            program.solver,
            0.0,
            program.length * program.dt,
            program.dt,
            program.start,
            p,
            stepsize_controller=diffrax.ConstantStepSize(),
            adjoint=diffrax.BacksolveAdjoint(),
            max_steps=program.length + 2,
        ).ys
        assert end is not None
        return sum_of_squares((end[0] if isinstance(end, tuple) else end)[-1])

    def walked(p: Any, count: Any = None) -> Any:
        inverse = lambda carry, x, y: program.back(p, carry, x)  # noqa: E731
        unchecked = Inverse(inverse, drift_tol=float("inf"))
        return loss(program, p, partial(checkpointed_scan, inverse=unchecked, checkpoints=1), count)

    def by(scan: Any, **how: Any) -> Callable[..., Any]:
        return lambda p, count=None: loss(program, p, partial(scan, **how), count)

    stored = partial(by, checkpointed_scan, checkpoints=CHECKPOINTS)
    return {
        EXACT: stored(),
        "16 bits": stored(storage=Compressed("bfloat16")),
        "8 bits": stored(storage=Compressed("int8")),
        "walk back without a record": walked,
        "the last quarter alone": by(truncated),
        "continuous adjoint": solved,
    }


def _in_double(program: Program) -> Any:
    """The exact gradient, with all numbers in double precision."""

    def double(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)

    with jax.enable_x64(True):
        p, init, xs = map(double, (program.parameters, program.init, program.xs))
        program = program._replace(init=init, xs=xs)
        return jax.jit(jax.grad(partial(loss, program, scan=lax.scan)))(p)


def _temporaries(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


def _measured(name: str, size: int, quick: bool) -> list[Record]:
    program = SYSTEMS[name](size)
    if quick:
        program = program._replace(length=8, xs=None if program.xs is None else program.xs[:8])
    records, exact, p = list[Record](), None, program.parameters
    fun = partial(loss, program, scan=lax.scan)
    certified = jax.jit(lambda g, key: certify(fun, lambda _: g, key=key)(p))
    norm = lambda tree: jnp.linalg.norm(jax.flatten_util.ravel_pytree(tree)[0])  # noqa: E731
    double = jax.tree.map(lambda x: x.astype(jnp.float32), _in_double(program))
    for number, (way, of) in enumerate(ways(program).items()):
        compiled = jax.jit(jax.grad(of)).lower(p).compile()
        found, ran = compiled(p), list[None]()
        exact = found if exact is None else exact
        if size == SIZES[name][1]:
            jax.block_until_ready(
                jax.jit(jax.grad(partial(of, count=partial(ran.append, None))))(p)
            )
            jax.effects_barrier()
        seed = len(SYSTEMS) * size + list(SYSTEMS).index(name)  # so all directions are different
        directions = jax.random.split(jax.random.fold_in(jax.random.key(seed), number), KEYS)
        certificates = [certified(found, key) for key in directions]
        error, rounding = (
            float(norm(jax.tree.map(jnp.subtract, found, each)) / norm(found))
            for each in (exact, double)
        )
        keys = {"system": name, "size": size, "way": way, "evaluations": len(ran) or None}
        records.append(
            keys
            | {"temp_bytes": _temporaries(compiled), "error": error, "rounding": rounding}
            | {"certified": [float(c.error) for c in certificates]}
            | {"inside": sum(bool(c.low <= error <= c.high) for c in certificates)}
        )
    return records


def _at_equal_bytes(quick: bool) -> list[Record]:
    """A wave with checkpoints of 32 and of 8 bits."""
    width, length, few = (32, 20, 4) if quick else (256, 1000, 10)
    many, records = 1 + (few - 1) * 64 // 17, list[Record]()
    program = wave(width, length)
    for way, checkpoints, storage in (
        ("32 bits", few, None),
        ("8 bits", many, Compressed("int8")),
    ):
        scan = partial(checkpointed_scan, checkpoints=checkpoints, storage=storage)
        run = (
            jax.jit(jax.grad(partial(loss, program, scan=scan))).lower(program.parameters).compile()
        )
        taken = [
            seconds(lambda run=run: jax.block_until_ready(run(program.parameters)))
            for _ in range(5)
        ]
        record = {"system": "equal bytes", "way": way, "checkpoints": checkpoints}
        record |= {"evaluations": plan(length, checkpoints).evaluations}
        record |= {"temp_bytes": _temporaries(run), "median_ms": 1e3 * median(taken)}
        records.append(record)
    return records


def pieces(quick: bool) -> Iterator[Measurement]:
    for name in list(SYSTEMS)[:1] if quick else SYSTEMS:
        for size in SIZES[name][1:2] if quick else SIZES[name]:
            yield Measurement(f"{name}, {size}", partial(_measured, name, size))
    yield Measurement("equal bytes", _at_equal_bytes)


def _shown(results: Results) -> Any:
    return [r for r in results.runs if r["way"] != EXACT and r.fields.get("size") in (24, 32)]


def _inside(results: Results) -> str:
    """Of errors that are more than rounding, which forward mode has, too."""
    runs = [r for r in results.runs if r.fields.get("error", 0) > 1e-5 and r["way"] != EXACT]
    return f"{sum(r['inside'] for r in runs)} of {KEYS * len(runs)}"


def _exact(results: Results) -> str:
    found = find(results.runs, way=EXACT)
    return f"{max(max(r['certified']) for r in found):.0e}".replace("e-0", "e-")


def _times(results: Results) -> str:
    exact, coded = find(results.runs, system="equal bytes")
    return f"{coded['median_ms'] / exact['median_ms']:.2f}"


def _fewer(results: Results) -> str:
    exact, coded = find(results.runs, system="equal bytes")
    return f"{exact['evaluations']} to {coded['evaluations']}"


def _error(of: Callable[[Any], float]) -> Callable[[Any], str]:
    def cell(run: Any) -> str:
        text = f"{of(run):.1e}"
        return "NaN" if text == "nan" else text.replace("e-0", "e-").replace("e+0", "e")

    return cell


TABLES = {
    "certificates": Table(
        "Gradients that are wrong on purpose, in float32, {where} (`benchmarks/certificates.py`):"
        " bytes of temporaries, evaluations of a step (of the field, for the continuous adjoint),"
        " and errors relative to the norm of the gradient, certified by 8 probes and in truth:",
        _shown,
        [
            ("system", "{system}"),
            ("way", "{way}"),
            ("kB", lambda run: f"{run['temp_bytes'] / 1e3:.0f}"),
            ("evaluations", "{evaluations}"),
            ("certified", _error(lambda run: run["certified"][0])),
            ("true", _error(lambda run: run["error"])),
        ],
    ),
}
FIGURES = {
    "certificates-inside": _inside,
    "certificates-exact": _exact,
    "certificates-time": _times,
    "certificates-evaluations": _fewer,
}
BENCHMARK = Benchmark("certificates", pieces, TABLES, FIGURES)
