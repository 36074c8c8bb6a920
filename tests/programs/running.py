"""Runs a random program with jax_revolve's loops and with JAX's own, and compares the results."""

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from support.oracles import by_python, masked_while_loop
from support.record import Record

import jax_revolve
from jax_revolve import Disk, HostMemory
from jax_revolve._compat.values import vary
from jax_revolve.engine.tape import weight_gradients
from jax_revolve.step import cpu
from programs import operations
from programs.operations import NARROW, OPERATIONS, SIZE
from programs.program import MODES, SWITCHES, Program

BATCH = 2
COMPILER = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
"""A way to compile in half of the time, which is not always right: results that differ are computed
again as they are by default."""
LEAST = re.compile(r"memory must be at least (\d+) bytes")


class Loops(NamedTuple):
    """The loops of a program; `whole` is applied to all of it, `chain` runs layers. `inner` are the
    scan and the while loop for loops in other loops, `plain` is JAX's own scan."""

    scan: Callable[..., Any]
    while_loop: Callable[..., Any]
    fori_loop: Callable[..., Any]
    whole: Callable[..., Any]
    chain: Callable[..., Any]
    inner: tuple[Callable[..., Any], Callable[..., Any]]
    plain: Callable[..., Any]


def _with(args: Any, at: tuple[int, ...], values: Any) -> list[Any]:
    changed = dict(zip(at, values, strict=True))
    return [changed.get(i, arg) for i, arg in enumerate(args)]


def theirs(scan: Callable[..., Any] = lax.scan, mixes: bool = False) -> Loops:
    """JAX's own loops, while loops as masked scans."""
    masked = partial(masked_while_loop, scan=scan, mixes=mixes)

    def fori_loop(lower: Any, upper: Any, body: Any, init: Any, max_steps: int) -> Any:
        if isinstance(upper, int):
            step = lambda carry, i: (body(i, carry), None)  # noqa: E731
            return scan(step, init, jnp.arange(lower, upper, dtype=jnp.int32))[0]
        advance = lambda state: (state[0] + 1, body(*state))  # noqa: E731
        start = (jnp.int32(lower), init)
        return masked(lambda state: state[0] < upper, advance, start, max_steps)[1]

    chain = lambda layers, x: reduce(lambda x, layer: layer(x), layers, x)  # noqa: E731
    return Loops(scan, masked, fori_loop, lambda fun, **_: fun, chain, (scan, masked), scan)


def ours(options: dict[str, Any], plain: Callable[..., Any] = lax.scan) -> Loops:
    some = {k: v for k, v in options.items() if k in ("checkpoints", "memory")}
    if "storage" in options:  # of one loop, as are no checkpoints on the device
        del some["checkpoints"]

    def fori_loop(lower: Any, upper: Any, body: Any, init: Any, max_steps: int) -> Any:
        return jax_revolve.checkpointed_fori_loop(
            lower, upper, body, init, max_steps=max_steps, **options
        )

    def loops(**options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def while_loop(cond: Any, body: Any, init: Any, max_steps: int) -> Any:
            limits = {"max_steps": max_steps, "throw": False}  # no callback, for jax.export
            return jax_revolve.bounded_while_loop(cond, body, init, **limits, **options)

        return partial(jax_revolve.checkpointed_scan, **options), while_loop

    # What an inner loop holds is a residual of the outer one's step: both cannot have one budget.
    without_memory = {name: value for name, value in options.items() if name != "memory"}
    return Loops(
        *loops(**options),
        fori_loop,
        partial(jax_revolve.checkpoint_loops, min_length=1, **some),
        partial(jax_revolve.checkpointed_chain, **some),
        loops(**without_memory),
        plain,
    )


def options_of(program: Program, directory: str) -> dict[str, Any]:
    name, _, count = program.setting.partition(" ")
    if name == "checkpoints":
        return {"checkpoints": int(count)}
    return {
        "default": {},
        "all": {"checkpoints": "all"},
        "blocks of 2": {"checkpoints": 2, "block_size": 2},
        "blocks of 3": {"checkpoints": 2, "block_size": 3},
        "all in blocks of 4": {"checkpoints": "all", "block_size": 4},
        "blocks": {"block_size": 2},
        "least memory": {"memory": 0},
        "some memory": {"memory": 1500},
        "much memory": {"memory": "1MB"},
        "host": {"checkpoints": 0, "storage": HostMemory(checkpoints=3, transfer=0.1)},
        "host memory": {"checkpoints": 1, "storage": HostMemory(checkpoints=2, transfer=0.1)},
        "disk": {"checkpoints": 1, "storage": Disk(directory, checkpoints=2, transfer=0.1)},
        "progress": {"progress": Record()},
    }[program.setting]


# The program


def _bounded(x: Any) -> Any:
    """Values that grow from operation to operation would end as infinities."""
    return x / jnp.sqrt(1 + x * x / 9)


def _step(program: Program, consts: Any, carry: Any, x: Any, at: Any = None) -> Any:
    """The next carry, and a y."""
    weights, gains, bias = consts
    at = (jnp.abs(x[0]) * 100).astype(jnp.int32) % program.length if at is None else at
    driven = gains @ carry["v"]
    pools: dict[str, list[Any]] = {"v": [carry["v"], x, bias, driven], "m": [carry["m"], weights]}
    for name, inputs, parameter in program.operations:
        kind = OPERATIONS[name]
        values = [pools[t][-1 - i % len(pools[t])] for t, i in zip(kind.takes, inputs, strict=True)]
        pools[kind.returns].append(_bounded(kind.run(parameter, *values)))
    v, m = (jnp.tanh(pools[t][-1] + 0.1 * pools[t][-2]) for t in "vm")
    new = {
        "v": 0.4 * carry["v"] + 0.4 * v + 0.1 * x + 0.1 * driven,
        "m": 0.5 * carry["m"] + 0.4 * m,
    }
    new["m"] += 0.1 * jnp.outer(new["v"], v)
    extras, ys = _step_extras(carry, new["v"], at)
    constants = (True, 2.5) if program.constant else ()
    return {**carry, **new, **extras}, (v * bias, ys, *constants)


def _extras(program: Program, v: Any) -> dict[str, Any]:
    """Made of a value, so that they vary over the devices where it does."""
    zero = v[0] * 0
    leaves = {
        "running sum": lambda: zero,
        "trajectory": lambda: jnp.broadcast_to(zero, (program.length + 1, SIZE)),
        "count": lambda: zero.astype(jnp.int8),
        "flag": lambda: zero == 0,
        "empty": lambda: jnp.broadcast_to(zero, (0, 2)),
        "key": lambda: jax.random.fold_in(jax.random.key(7), zero.astype(jnp.int32)),
        "fixed": lambda: v * 2,
        "complex": lambda: lax.complex(v, v * 0.5),
        "half": lambda: v.astype(jnp.bfloat16),
        "unused": lambda: v * 3,
    }
    return {name: leaves[name]() for name in program.extras}


def _step_extras(carry: Any, v: Any, at: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    changes: dict[str, Callable[[Any], Any]] = {
        "running sum": lambda s: s + jnp.sum(v**2),
        "trajectory": lambda t: lax.dynamic_update_index_in_dim(t, v, at, 0),
        "count": lambda n: n + (v[0] > 0).astype(jnp.int8),
        "flag": lambda f: ~f,
        "empty": lambda e: e * 2,
        "key": lambda k: jax.random.fold_in(k, 3),
        "complex": lambda z: 0.5 * z * jnp.exp(0.3j * lax.complex(v, v)),
        "half": lambda h: h * 0.5 + v.astype(jnp.bfloat16),
        "unused": lambda u: u * 0.5 + v,
    }
    new = {name: changes[name](carry[name]) for name in changes if name in carry}
    if "key" in carry:
        noise = jax.random.uniform(carry["key"], v.shape, v.dtype)
        new["v"] = v + 0.1 * noise * v
    if "flag" in carry:
        new["v"] = jnp.where(carry["flag"], new.get("v", v), v * 0.9)
    if "count" in carry:
        new["v"] = new.get("v", v) * (1 + 0.01 * carry["count"].astype(v.dtype))
    if "fixed" in carry:
        new["v"] = new.get("v", v) + 0.1 * carry["fixed"]
    return new, {name: new[name] for name in ("count", "half", "complex") if name in new}


def _loop(program: Program, loops: Loops, weights: Any, bias: Any, v: Any, m: Any, xs: Any) -> Any:
    """Everything that the loop returns."""
    init = {"v": v, "m": m, **_extras(program, v)}
    # The gains are in a product alone, as large weights mostly are.
    consts = (weights, jnp.cos(weights), bias)

    around = jnp.cos(lax.stop_gradient(bias))  # JAX refuses tangents of what a rule closes over

    def step(carry: Any, x: Any, at: Any = None) -> Any:
        with jax.numpy_rank_promotion("allow"), patch.object(operations, "AROUND", [around]):
            return _step(program, consts, carry, x, at)

    if not program.has_references:
        return _run_loop(program, loops, step, init, bias, xs)

    # A sum that steps read and write, and what is written alone.
    total, last_v = jax.new_ref(v * 0), jax.new_ref(v * 0)

    def step_with_references(carry: Any, x: Any, at: Any = None) -> Any:
        carry, ys = step(carry, x, at)
        own = jax.new_ref(carry["v"])
        own[0] += 0.1 * total[1]
        total[...] += 0.2 * jnp.tanh(own[...])
        last_v[...] = carry["v"]
        return {**carry, "v": own[...]}, ys

    return _run_loop(program, loops, step_with_references, init, bias, xs), total[...], last_v[...]


def _run_loop(program: Program, loops: Loops, step: Any, init: Any, bias: Any, xs: Any) -> Any:
    length, last, v = program.length, program.length - 1, init["v"]

    def counted(i: Any, carry: Any) -> Any:
        at = last - i if program.reverse else i
        return step(carry, lax.dynamic_index_in_dim(xs, at, keepdims=False), at)[0]

    least = int(program.seed < operations.MIXING or program.seed % 2)

    def goes_on(state: Any) -> Any:
        i, carry = state
        if program.seed % 3 == 0:  # a number of steps that is the example's own
            return i < least + (jnp.abs(bias[0]) * 50).astype(jnp.int32) % length
        limit = 2.5 if program.seed % 3 == 1 else 0.6
        return (jnp.sum(carry["v"] ** 2) < limit) | (i < least)

    inner_scan, inner_while = loops.inner
    zero = (v[0] * 0).astype(jnp.int32)  # varies over the devices as the number of steps does

    def by_while(loop: Any, carry: Any, most: int) -> Any:
        body = lambda state: (state[0] + 1, counted(state[0], state[1]))  # noqa: E731
        return loop(goes_on, body, (zero, carry), most)[1]

    def inner(carry: Any, x: Any) -> Any:
        parts = jnp.stack([x, 0.5 * x, jnp.sin(x)])
        carry, ys = inner_scan(step, carry, parts)
        return carry, ys[0][-1]

    scan = partial(loops.scan, reverse=program.reverse, unroll=program.unroll)
    match program.loop.removeprefix("rewritten "):
        case "scan":
            return scan(step, init, xs)
        case "while":
            return by_while(loops.while_loop, init, length)
        case "fori":
            return loops.fori_loop(0, length, counted, init, length)
        case "dynamic fori":
            upper = 1 + (jnp.abs(bias[1]) * 50).astype(jnp.int32) % length
            return loops.fori_loop(0, upper, counted, init, length)
        case "nest":
            return scan(inner, init, xs)
        case "while in scan":
            day = lambda carry, x: (by_while(inner_while, step(carry, x)[0], 3), x * bias)  # noqa: E731
            return scan(day, init, xs)
        case "scan in while":
            body = lambda state: (state[0] + 1, inner(state[1], xs[0])[0])  # noqa: E731
            return loops.while_loop(goes_on, body, (zero, init), length)[1]
    layers = [lambda carry, i=i: step(carry, xs[i])[0] for i in range(min(length, 5))]
    return loops.chain(layers, init)


def _batched_loop(
    program: Program, loops: Loops, weights: Any, bias: Any, v: Any, m: Any, xs: Any
) -> Any:
    """As `_loop`, of a step that computes several examples, some of the arguments the same for
    all."""
    of_weights, of_bias, *_, of_xs = (0 if mapped else None for mapped in program.mapped)
    init = jax.vmap(lambda v, m: {"v": v, "m": m, **_extras(program, v)})(v, m)

    def of_one(weights: Any, bias: Any, carry: Any, x: Any) -> Any:
        return _step(program, (weights, jnp.cos(weights), bias), carry, x)

    def step(carry: Any, x: Any) -> Any:
        return jax.vmap(of_one, (of_weights, of_bias, 0, of_xs))(weights, bias, carry, x)

    xs = xs if of_xs is None else jnp.moveaxis(xs, 1, 0)
    return loops.scan(step, init, xs, reverse=program.reverse, unroll=program.unroll)


def _plain_while(cond: Any, body: Any, init: Any, most: int) -> Any:
    return lax.while_loop(lambda state: cond(state) & (state[0] < most), body, init)


def of_program(program: Program, loops: Loops, *arguments: Any) -> Any:
    """What is differentiated: one number, that depends on all results of the loop, or a loop of its
    derivatives."""
    around = program.body != "the loop"
    run = _of_derivatives if around else total
    if not program.loop.startswith("rewritten"):
        return run(program, loops, *arguments)
    inside = loops
    if loops.scan not in (lax.scan, by_python):
        plain_fori = lambda *args: lax.fori_loop(*args[:-1])  # noqa: E731
        inner = (lax.scan, _plain_while)
        inside = theirs()._replace(while_loop=_plain_while, fori_loop=plain_fori, inner=inner)
    more = {"max_steps": 40} if "while" in program.loop + program.body else {}
    if around and not program.rewrites_derivatives:
        # the loop alone, whose derivatives others take
        whole = loops.whole(partial(total, program, inside), **more)
        outside = inside._replace(while_loop=loops.while_loop)
        return _of_derivatives(program, outside, *arguments, inner=whole)
    return loops.whole(partial(run, program, inside), **more)(*arguments)


def _of_derivatives(
    program: Program, loops: Loops, *arguments: Any, inner: Callable[..., Any] | None = None
) -> Any:
    """A loop whose body takes derivatives of the loop, which begins from the carry or the x."""
    inner = partial(total, program, loops) if inner is None else inner
    which = [(2,), (1,), (0, 2), (4,), (1, 2)][program.seed % 5]
    begins = ["x", "carry", "both"][program.seed // 5 % 3]
    draw = arguments[2]

    def number(results: Any) -> Any:
        return sum(jnp.mean(jnp.sin(x)) for x in jax.tree.leaves(results))

    def derivative(args: list[Any]) -> Any:
        f = lambda *chosen: inner(*_with(args, which, chosen))  # noqa: E731
        at = [args[i] for i in which]
        directions = [jnp.cos(x) for x in at]
        grad = jax.grad(f, tuple(range(len(at))))
        match program.inner:
            case "grad":
                return number(grad(*at))
            case "jvp":
                return number(jax.jvp(f, at, directions))
            case "vmap of grad":
                return number(jax.vmap(grad)(*(jnp.stack([x, 0.5 * x]) for x in at)))
            case "jvp of grad":
                return number(jax.jvp(grad, at, directions)[1])
        return number(jax.grad(lambda *at: number(grad(*at)))(*at))

    def body(carry: Any, x: Any) -> Any:
        args = list(arguments)
        args[2] = {"x": x, "carry": carry, "both": carry}[begins]
        args[1] = 0.5 * args[1] + x if begins == "both" else args[1]
        d = derivative(args)
        return jnp.tanh(carry * (1 + 0.3 * d)) + 0.1 * x, d

    xs = jnp.stack([draw, 0.5 * draw, jnp.cos(draw)])
    counted = lambda i, c: body(c, lax.dynamic_index_in_dim(xs, i, keepdims=False))[0]  # noqa: E731
    match program.body:
        case "lax.scan":
            results = loops.plain(body, draw, xs)
        case "scan":
            results = loops.scan(body, draw, xs)
        case "lax.fori_loop":
            start = (draw, jnp.int32(0))
            step = lambda s, _: ((counted(s[1], s[0]), s[1] + 1), None)  # noqa: E731
            results = loops.plain(step, start, None, 3)[0][0]
        case "fori":
            results = loops.fori_loop(0, 3, counted, draw, 3)
        case "while":
            steps = 1 + (jnp.abs(draw[0]) * 50).astype(jnp.int32) % 3
            step = lambda s: (s[0] + 1, counted(*s))  # noqa: E731
            results = loops.while_loop(lambda s: s[0] < steps, step, (steps * 0, draw), 4)[1]
        case "checkpoint":
            results = jax.checkpoint(body)(draw, xs[1])
        case _:
            results = loops.plain(jax.checkpoint(body), draw, xs)
    return number(results)


def total(program: Program, loops: Loops, *arguments: Any) -> Any:
    """One number, that depends on all of the results."""
    run = _batched_loop if program.transformation == "explicit mesh of steps" else _loop
    total = jnp.zeros((), arguments[0].dtype)
    for leaf in jax.tree.leaves(run(program, loops, *arguments)):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf) % 3
        leaf = jnp.sin(leaf) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf
        leaf = leaf.real + leaf.imag if jnp.iscomplexobj(leaf) else leaf
        total += jnp.sum(leaf.astype(total.dtype))
    return total


# What is asked of it


def _transformed(program: Program, f: Callable[..., Any]) -> Callable[..., Any]:
    active = tuple(i for i in range(5) if (program.seed >> i) % 4) or (0,)
    grad = partial(jax.grad, argnums=active)
    axes = [0 if mapped else None for mapped in program.mapped]
    rotated = [*axes[2:], *axes[:2]]
    vmap = partial(jax.vmap, **({"axis_name": "b"} if program.named else {}))
    many = lambda fun, axes: lambda *args: jnp.sum(vmap(fun, axes)(*args))  # noqa: E731

    def total(fun: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(fun(*args)))

    def jvp(fun: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            of_active = lambda *chosen: fun(*_with(args, active, chosen))  # noqa: E731
            chosen = [args[i] for i in active]
            return jax.jvp(of_active, chosen, [jnp.cos(x) for x in chosen])

        return run

    def linearize(*args: Any) -> Any:
        value, linear = jax.linearize(f, *args)
        first, second = [*map(jnp.cos, args)], [*map(jnp.sin, args)]
        both = map(jnp.stack, zip(first, second, strict=True))
        return value, linear(*first), jax.vmap(linear)(*both), jax.jvp(linear, first, second)

    def in_scan(*args: Any) -> Any:
        scales = jnp.array([1.0, 0.5, 0.7], args[0].dtype)
        step = lambda c, s: (c + f(*(s * x for x in args)) * c, None)  # noqa: E731
        return lax.scan(step, jnp.ones((), args[0].dtype), scales)[0]

    def in_cond(*args: Any) -> Any:
        return lax.cond(args[1][0] < 5, f, lambda *args: jnp.sum(args[0]), *args)

    def sharded(fun: Callable[..., Any]) -> Callable[..., Any]:
        mesh = jax.make_mesh((BATCH,), ("b",), axis_types=(jax.sharding.AxisType.Auto,))
        specs = tuple(P("b") if mapped else P() for mapped in program.mapped)
        local = [0 if mapped else None for mapped in program.mapped]

        def run(*args: Any) -> Any:
            # What is the same on all devices is made to vary: its cotangents are added up outside.
            own = [a[0] if mapped else a for a, mapped in zip(args, program.mapped, strict=True)]
            if program.named:  # the mesh's axis is the one of the examples
                return jax.tree.map(lambda x: x[None], fun(*(vary(a, frozenset("b")) for a in own)))
            return jax.vmap(fun, local)(*(vary(a, frozenset("b")) for a in args))

        return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=P("b"))

    def at_one_point(*args: Any) -> Any:
        at = [a[0] if mapped else a for a, mapped in zip(args, program.mapped, strict=True)]
        tangents = [jnp.stack([jnp.cos(a), jnp.sin(a)]) for a in at]
        return vmap(lambda *dots: jax.jvp(f, tuple(at), dots))(*tangents)

    cases: dict[str, Callable[[], Callable[..., Any]]] = {
        "value": lambda: f,
        "grad": lambda: grad(f),
        "grad of vmap": lambda: grad(many(f, axes)),
        "vmap of grad": lambda: vmap(grad(f), axes),
        "grad of vmap of vmap": lambda: grad(many(jax.vmap(f, axes), rotated)),
        "vmap of vmap of grad": lambda: jax.vmap(jax.vmap(grad(f), axes), rotated),
        "vmap of grad of vmap": lambda: jax.vmap(grad(many(f, axes)), rotated),
        "jvp": lambda: jvp(f),
        "vmap of jvp": lambda: vmap(jvp(f), axes),
        "jacobian forward": lambda: jax.jacfwd(f, active),
        "jacobian reverse": lambda: jax.jacrev(lambda *args: jnp.sin(f(*args)) * args[1], active),
        "linearize": lambda: linearize,
        "forward over reverse": lambda: jvp(grad(f)),
        "reverse over forward": lambda: grad(lambda *args: jvp(f)(*args)[1]),
        "reverse over reverse": lambda: grad(total(grad(f))),
        "forward over forward": lambda: jvp(jvp(f)),
        "jacobian of gradient": lambda: jax.jacrev(jax.grad(f, 2), 2),
        "vmap of hessian": lambda: vmap(jax.hessian(f, 2), axes),
        "hessian of vmap": lambda: jax.hessian(many(f, axes), 2),
        "forward over forward over reverse": lambda: jvp(jvp(grad(f))),
        "reverse over forward over reverse": lambda: grad(total(jvp(grad(f)))),
        "forward over reverse over reverse": lambda: jvp(grad(total(grad(f)))),
        "reverse over reverse over reverse": lambda: grad(total(grad(total(grad(f))))),
        "vmap of reverse over forward over reverse": lambda: vmap(grad(total(jvp(grad(f)))), axes),
        "vmap of forward over reverse": lambda: vmap(jvp(grad(f)), axes),
        "forward over reverse of vmap": lambda: jvp(grad(many(f, axes))),
        "vmap of reverse over reverse": lambda: vmap(grad(total(grad(f))), axes),
        "vmap of jvp at one point": lambda: at_one_point,
        "grad of jit of vmap of grad": lambda: grad(total(jax.jit(vmap(grad(f), axes)))),
        "hessian": lambda: jax.hessian(f, (1, 2)),
        "checkpoint": lambda: grad(jax.checkpoint(f)),
        "in scan": lambda: grad(in_scan),
        "in cond": lambda: grad(in_cond),
        "explicit mesh": lambda: grad(many(f, axes)),
        "vmap of grad on an explicit mesh": lambda: jax.vmap(grad(f), axes),
        "explicit mesh of steps": lambda: grad(f),
        "shard_map": lambda: grad(lambda *args: jnp.sum(sharded(f)(*args))),
        "grad in shard_map": lambda: sharded(grad(f)),
    }
    return cases[program.transformation]()


def arguments(program: Program) -> list[Any]:
    draw = np.random.default_rng(program.seed)
    mapped, name = program.mapped, program.transformation
    lead: list[tuple[int, ...]] = [()] * 5
    if "vmap" in name or "shard_map" in name or "explicit mesh" in name:
        lead = [(BATCH,) if m else () for m in mapped]
    if name.count("vmap") == 2:
        rotated = [*mapped[2:], *mapped[:2]]
        lead = [((3,) if r else ()) + own for r, own in zip(rotated, lead, strict=True)]
    shapes = [(SIZE, SIZE), (SIZE,), (SIZE,), (SIZE, SIZE), (program.length, SIZE)]
    dtype = np.float32 if program.single else np.float64
    return [
        np.asarray(draw.normal(size=(*own, *shape)) / 1.5, dtype)
        for own, shape in zip(lead, shapes, strict=True)
    ]


def run(program: Program, loops: Loops, compiler: dict[str, Any]) -> Any:
    fun = _transformed(program, partial(of_program, program, loops))
    fun = jax.jit(fun, compiler_options=compiler) if program.under_jit else fun
    inputs = list(map(jnp.asarray, arguments(program)))
    if "explicit mesh" not in program.transformation:
        results = fun(*inputs)
    else:
        mesh = jax.make_mesh((BATCH,), ("b",), axis_types=(jax.sharding.AxisType.Explicit,))
        specs = [P("b") if mapped else P() for mapped in program.mapped]
        with jax.set_mesh(mesh):
            results = fun(*(jax.device_put(x, s) for x, s in zip(inputs, specs, strict=True)))
    jax.effects_barrier()
    return jax.tree.map(np.asarray, results)


@contextmanager
def _mode(program: Program, *modes: str) -> Iterator[None]:
    """The program's mode of JAX's configuration, if it is one of these."""
    contexts = {
        "strict": lambda: jax.numpy_dtype_promotion("strict"),
        "strict ranks": lambda: jax.numpy_rank_promotion("raise"),
        "checks": lambda: jax.enable_checks(True),
        "leaks": lambda: jax.checking_leaks(),
        "nans": lambda: jax.debug_nans(True),
        "no jit": lambda: jax.disable_jit(),
    }
    with contexts[program.mode]() if program.mode in {*modes} & {*contexts} else nullcontext():
        yield


@contextmanager
def paths(program: Program) -> Iterator[None]:
    """Paths that small arrays, and loops on a CPU, would not take: branches follow the platform
    that is compiled for, where a carry is and how a loop turns the one that is traced for."""
    with ExitStack() as stack:
        if program.small_weights:
            limits = {"LEAST_WEIGHT": 0, "MOST_KEPT": float("inf"), "STEPS_IN_A_PRODUCT": 2}
            stack.enter_context(patch.multiple(weight_gradients, **limits))
        if program.other_platform:
            other = lambda *operands, default, **_: default(*operands)  # noqa: E731
            stack.enter_context(patch.object(lax, "platform_dependent", other))
            stack.enter_context(patch.object(cpu, "turned_off", {"carry", "turns"}))
        yield


@contextmanager
def _numbers(program: Program) -> Iterator[None]:
    """What changes the results, and so holds for both."""
    with ExitStack() as stack:
        stack.enter_context(jax.enable_x64(not program.single))
        if program.mode == "other keys":
            is_unsafe = program.seed >= operations.MIXING and program.seed % 2
            stack.enter_context(jax.default_prng_impl("unsafe_rbg" if is_unsafe else "rbg"))
        stack.enter_context(patch.object(operations, "AXIS", ["b"] if program.named else []))
        for name in program.switches:
            stack.callback(jax.config.update, name, jax.config.values[name])
            jax.config.update(name, SWITCHES[name])
        yield


def _run_ours(program: Program, compiler: dict[str, Any]) -> Any:
    """With a budget that is too small, the least that the error states has to be enough."""
    with tempfile.TemporaryDirectory() as directory:
        options = options_of(program, directory)
        for _ in range(16):  # each loop of a nest has a least, and may keep more for the others
            try:
                loops = ours(options, by_python if program.forgets else lax.scan)
                return run(program, loops, compiler)
            except ValueError as error:
                least = LEAST.search(str(error))
                if least is None or int(least[1]) <= options["memory"]:
                    raise
                options = {**options, "memory": int(least[1])}
    raise AssertionError("The least memory that an error states is not enough.")


class Refused(Exception):
    """JAX's own loops refuse the program, or give two results for it."""


def check(program: Program) -> None:
    """Raises an `AssertionError` or whatever the program raises; `Refused` if JAX's own loops do
    not take it, or if it has two results with them, compiled and not."""
    try:
        _check(program, COMPILER)
    except AssertionError:
        try:
            _check(program, dict.fromkeys(COMPILER, True))
        except AssertionError:
            _check_compiler(program)
            raise


def _check(program: Program, compiler: dict[str, Any]) -> None:
    expected = run_theirs(program, compiler)
    # A rule that is no derivative counts where the carry has tangents: in a loop of lax from the
    # first step on, in Python from where it depends on an input (3110338). So does one that refuses
    # tangents (4310691).
    apart = {"recomputed", "other_value", "other_value_in_reverse", *operations.NEWEST_WORDS}
    names = [o.name for o in program.operations]
    is_lax_apart = program.forgets and any("custom_vjp" in n or n in apart for n in names)
    try:
        with _numbers(program), _mode(program, *MODES), paths(program):
            results = _run_ours(program, compiler)
    except NotImplementedError as error:
        if "closes over" in str(error):  # `lax.scan` loses those, and fails while it is lowered
            raise Refused(str(error)) from error
        raise
    except TypeError as error:
        # What is traced as a whole, as by `jax.jit`, loses the values that its rules close over.
        is_whole = program.loop.startswith("rewritten") or program.loop == "chain"
        if is_whole and "closing_over" in names and "No constant handler" in str(error):
            raise Refused(str(error)) from error
        if is_lax_apart:
            run_theirs(program, compiler, theirs())
        raise
    except Exception as error:
        if "Leaked trace" in str(error) and "closing_over" in names:  # lax's loops leak these, too
            raise Refused(str(error)) from error
        raise
    try:
        compare(program, results, expected)
    except AssertionError as error:
        if is_lax_apart and program.body != "the loop":
            raise Refused("loops of JAX's and of ours, in Python and not, differ here") from error
        if is_lax_apart:
            return compare(program, results, run_theirs(program, compiler, theirs()))
        if program.single and _amplifies_rounding(program, compiler, expected):
            raise Refused("rounding in single precision is amplified") from error
        raise


def _amplifies_rounding(program: Program, compiler: dict[str, Any], expected: Any) -> bool:
    """Whether the same in double precision is another result."""
    double = run_theirs(replace(program, single=False), compiler)
    to_single = lambda x, like: np.asarray(x, like.dtype)  # noqa: E731
    try:
        compare(program, jax.tree.map(to_single, double, expected), expected, 0.2)
    except AssertionError:
        return True
    return False


def _check_compiler(program: Program) -> None:
    """XLA computes some second derivatives of `reduce_window` wrongly, in no loop at all."""
    compiled = run_theirs(program, {})
    with jax.disable_jit():
        one_by_one = run_theirs(program, {})
    try:
        compare(program, compiled, one_by_one)
    except AssertionError as error:
        raise Refused("another result than without a compiler") from error


def run_theirs(program: Program, compiler: dict[str, Any], loops: Loops | None = None) -> Any:
    loops = loops or theirs(by_python if program.forgets else lax.scan, mixes=program.named)
    try:
        with _numbers(program), _mode(program, "strict", "strict ranks", "no jit"):
            return run(program, loops, compiler)
    except Exception as error:
        raise Refused(str(error)) from error


def compare(program: Program, results: Any, expected: Any, part: float = 1.0) -> None:
    """They agree up to the tolerance, or a part of it."""
    exact = part * max(
        2e-3 if program.single else 1e-7,
        0.1 if "half" in program.extras else 0,
        *(NARROW[o.name][o.parameter % 3] for o in program.operations if o.name in NARROW),
    )
    largest = max((np.max(np.abs(x), initial=0) for x in jax.tree.leaves(expected)), default=0)

    def close(ours: Any, theirs: Any) -> None:
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=exact, atol=exact * float(largest + 1e-3))

    jax.tree.map(close, results, expected)
