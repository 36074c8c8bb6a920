"""A random program: what its loop's step does, what kind of loop it is, how it is to be reversed,
and what is asked of it. Made from a seed, and data, so that it can be made smaller."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from random import Random
from typing import Any, NamedTuple

import jax

from programs.operations import FORGOTTEN, MIXING, NEW, NEWER, NEWEST, NEWEST_WORDS, OPERATIONS


def weights(text: str) -> dict[str, int]:
    """Names, each with how often it is drawn."""
    pairs = (" ".join(pair.split()).rpartition(" ") for pair in text.split(","))
    return {name: int(weight) for name, _, weight in pairs}


LOOPS = weights("""
    scan 8, while 5, fori 2, dynamic fori 2, nest 2, while in scan 1, scan in while 1,
    rewritten scan 1, rewritten nest 2, rewritten while 1, chain 1
""")
"""Kinds of loops."""

SETTINGS = weights("""
    default 16, checkpoints 1 1, checkpoints 2 2, checkpoints 3 2, checkpoints 5 1, all 1,
    blocks of 2 2, blocks of 3 2, all in blocks of 4 1, blocks 1, least memory 2, some memory 2,
    much memory 2, host 1, host memory 1, disk 1, progress 2
""")

TRANSFORMATIONS = weights("""
    value 1, grad 6, grad of vmap 5, vmap of grad 5, grad of vmap of vmap 1,
    vmap of vmap of grad 1, vmap of grad of vmap 1, jvp 2, vmap of jvp 1, jacobian forward 1,
    jacobian reverse 1, linearize 1, forward over reverse 2, reverse over forward 1,
    reverse over reverse 2, forward over forward 1, vmap of forward over reverse 1,
    forward over reverse of vmap 1, vmap of reverse over reverse 1, hessian 1, checkpoint 2,
    in scan 1, in cond 1, shard_map 1, grad in shard_map 1, explicit mesh 1,
    vmap of grad on an explicit mesh 1, explicit mesh of steps 1
""")

HIGH = weights("""
    hessian 4, reverse over forward 1, forward over reverse 2, reverse over reverse 2,
    jacobian of gradient 4, vmap of hessian 2, hessian of vmap 1,
    forward over forward over reverse 2, reverse over forward over reverse 3,
    forward over reverse over reverse 2, reverse over reverse over reverse 2,
    vmap of reverse over forward over reverse 1
""")
"""Transformations to third order; whole matrices are compared entry by entry."""

NAMED = weights("""
    grad of vmap 2, vmap of grad 3, vmap of jvp 1, vmap of jvp at one point 2,
    vmap of forward over reverse 2, vmap of reverse over reverse 1, grad of jit of vmap of grad 2,
    forward over reverse of vmap 1, grad in shard_map 1
""")
"""Transformations of programs whose axis of examples has a name, which steps use."""

WITH_NAMES = ("scan", "fori", "nest", "rewritten scan", "rewritten nest")
"""Their loops."""

UNEQUAL = ("while", "while", "dynamic fori", "while in scan", "scan in while", "scan")
"""Their loops where examples take different numbers of steps."""

BODIES = weights("""
    the loop 14, lax.scan 3, scan 2, lax.fori_loop 1, fori 1, while 1, checkpoint 1,
    scan of checkpoint 1
""")
"""What takes derivatives of the loop in its body: nothing most often, another loop, of JAX's or of
ours, or `jax.checkpoint`."""

INNER = weights("""
    grad 6, jvp 1, vmap of grad 1, jvp of grad 1, grad of grad 1
""")
"""The derivatives taken there, those of second order only if no others are taken outside."""

LOOPS_INSIDE = weights("""
    scan 6, while 3, fori 2, dynamic fori 1, nest 1, rewritten scan 1, rewritten while 1,
    chain 1
""")
"""The loops whose derivatives are taken there."""

AROUND = weights("""
    value 2, grad 4, jvp 2, vmap of grad 2, grad of vmap 2, jacobian reverse 1, linearize 1,
    forward over reverse 4, reverse over reverse 3, reverse over forward 1,
    vmap of forward over reverse 1, hessian 1, checkpoint 1, in scan 1, in cond 1, shard_map 1,
    explicit mesh 1
""")
"""Transformations of programs that take derivatives themselves."""

MODES = weights("""
    plain 14, strict 3, strict ranks 1, checks 1, leaks 1, nans 1, no jit 1, other keys 1
""")
"""Modes of JAX's configuration."""

SWITCHES = {
    "jax_remat3": True,
    "jax_custom_vjp3": True,
    "jax_custom_jvp3": True,
    "jax_remat_barrier_no_cotangents": True,
    "jax_use_simplified_jaxpr_constants": True,
    "jax_auto_pcast": False,
}
"""Options that JAX is about to turn, and what to: of a tenth of the programs, some."""

SWITCHED = 9_100_000
"""The first seed of these."""

ON_A_MESH = ("scan", "fori", "nest", "rewritten nest")
"""Loops on an explicit mesh: JAX's own while loops have no vmap there."""

IN_STORAGE = ("host", "host memory", "disk")

NESTS = {"nest", "while in scan", "scan in while", "rewritten nest", "chain"}
SLOW_MODES = {"checks", "leaks", "no jit"}
"""Where a step takes long to trace: there it does less."""

EXTRAS = (
    *("running sum", "trajectory", "count", "flag", "empty"),
    *("key", "fixed", "complex", "half", "unused"),
)
"""Further leaves of the carry."""


class Operation(NamedTuple):
    """What is called, with which of the values there are (counted modulo how many), and the
    parameter of the variant."""

    name: str
    inputs: tuple[int, ...]
    parameter: int


@dataclass(frozen=True)
class Program:
    """`mapped` tells which of the five arguments have an axis under `vmap`. `body` takes the
    `inner` derivative of the loop, unless it is "the loop". `single` is JAX's default precision;
    `named` gives the axis of the examples a name; `by_host` is for `host_scan`; with `constant`, a
    step returns Python numbers. `switches` are turned, for JAX's loops and for ours.
    Defaults are the simplest."""

    seed: int
    length: int
    operations: tuple[Operation, ...]
    extras: tuple[str, ...]
    loop: str = "scan"
    reverse: bool = False
    unroll: int = 1
    setting: str = "default"
    transformation: str = "grad"
    mapped: tuple[bool, ...] = (True,) * 5
    under_jit: bool = True
    mode: str = "plain"
    small_weights: bool = False
    other_platform: bool = False
    body: str = "the loop"
    inner: str = "grad"
    single: bool = False
    named: bool = False
    by_host: bool = False
    constant: bool = False
    switches: tuple[str, ...] = ()

    @classmethod
    def random(cls, seed: int) -> "Program":
        draw = Random(seed)
        mode, loop = _weighted(draw, MODES), _weighted(draw, LOOPS)
        body = _weighted(draw, BODIES)
        nested = body != "the loop"
        transformation = _weighted(draw, AROUND if nested else TRANSFORMATIONS)
        setting = _weighted(draw, SETTINGS)
        inner = _weighted(draw, INNER)
        if nested:
            loop = _weighted(draw, LOOPS_INSIDE)
            mode = "plain" if mode in SLOW_MODES else mode
            inner = "grad" if " o" in transformation or transformation == "hessian" else inner
        if mode in SLOW_MODES:
            loop = draw.choice(["scan", "while", "fori"])
            transformation = draw.choice(["grad", "grad of vmap", "jvp", "forward over reverse"])
        if "explicit" in transformation:
            loop = draw.choice(ON_A_MESH)
            body = "the loop" if body == "while" else body
            setting = draw.choice(IN_STORAGE) if draw.random() < 0.5 else setting
        if transformation == "explicit mesh of steps":
            loop = "scan"
        mixing = seed >= MIXING
        named = seed >= NEWER and draw.random() < (0.8 if mixing else 0.3)
        if named:
            mode = "other keys" if mixing and seed % 4 == 1 else "plain"
            body, nested, transformation = "the loop", False, _weighted(draw, NAMED)
            # Devices whose loops end at different times cannot wait for each other.
            is_unequal = mixing and "shard_map" not in transformation
            loop = draw.choice(UNEQUAL if is_unequal else WITH_NAMES)
        high = seed >= NEWEST and not (nested or named or mode in SLOW_MODES)
        if high and "explicit" not in transformation and draw.random() < 0.6:
            transformation = _weighted(draw, HIGH)
        is_long = loop in NESTS or mode in SLOW_MODES or " over " in transformation
        is_long |= seed >= NEWEST
        most = 2 if nested else 3 if is_long else draw.choice([3, 5, 8])
        known = [name for name in OPERATIONS if seed >= NEWER or name not in NEW]
        known = [name for name in known if seed >= NEWEST or name not in NEWEST_WORDS]
        known = [name for name in known if mixing or name != "seen"]
        count = draw.randint(1 if nested else 2, most)
        operations = tuple(_operation(draw, known) for _ in range(count))
        if seed >= NEWER and draw.random() < 0.7:
            words = ["collective"] if named else NEW
            operations = (*operations[1:], _operation(draw, words))
        # JAX refuses rules that name an axis in many of the transformations here.
        if seed >= NEWEST and draw.random() < (0.2 if mixing else 0.7):
            words = ["knowing"] if named else NEWEST_WORDS[: 2 if draw.random() < 0.7 else 4]
            # JAX's own loops lose what rules close over, and so does an eager `shard_map`.
            loses = loop.startswith("rewritten") or "shard" in transformation or nested
            words = [word for word in words if word != "closing_over" or not loses]
            operations = (*operations[1:], _operation(draw, words))
        if mixing and draw.random() < 0.7:
            operations = (*operations[1:], _operation(draw, ["seen"]))
        by_python = any(o.name in FORGOTTEN for o in operations) or is_third(transformation)
        lengths = [1, 2, 3, 4, 5, 7, 8, 11, 12, 16, 23, 30]
        lengths = lengths[:4] if by_python else lengths[:5] if nested else lengths
        # What is left is drawn in the order in which it always was: a seed is a program for ever.
        given: dict[str, Any] = {"loop": loop, "length": draw.choice(lengths)}
        given |= {"reverse": draw.random() < 0.3, "unroll": draw.choice([1, 1, 1, 2, 3])}
        extras = tuple(sorted(draw.sample(EXTRAS, draw.choice([0, 0, 1, 1, 2, 3]))))
        given |= {"operations": operations, "extras": extras, "setting": setting}
        given |= {"transformation": transformation, "mapped": _mapped(draw, transformation)}
        given |= {"under_jit": draw.random() < 0.9, "mode": mode}
        given |= {"small_weights": draw.random() < 0.6, "other_platform": draw.random() < 0.3}
        single = draw.random() < 0.5
        given["constant"] = seed >= NEWEST and draw.random() < 0.3
        if seed >= SWITCHED and draw.random() < 0.1:
            given["switches"] = _switches(draw)
        return cls(seed, **given, body=body, inner=inner, single=single, named=named)

    def switched(self) -> "Program":
        """The program with some switches, even if it has none."""
        return self if self.switches else replace(self, switches=_switches(Random(self.seed)))

    @property
    def has_references(self) -> bool:
        """Whether the steps also read and write mutable references. Not those of a while loop:
        the oracle runs steps after its end, and drops their results. `host_scan` refuses them."""
        has_oracle = self.loop.removeprefix("rewritten ") in ("scan", "fori", "nest")
        return has_oracle and self.seed % 4 == 0 and not self.by_host

    @property
    def forgets(self) -> bool:
        """Whether JAX's own loops may lose the derivative rules that it needs, and ours do not: not
        those that stay as they are, because they are short."""
        is_old = jax.__version_info__ < (0, 12)
        needs = is_old and any(o.name in FORGOTTEN for o in self.operations)
        needs |= any(o.name == "closing_over" for o in self.operations)
        stays = self.loop.startswith("rewritten") and self.length < 2
        return needs and not stays and not self.rewrites_derivatives

    @property
    def rewrites_derivatives(self) -> bool:
        """Whether a function is rewritten in whose loop JAX has taken derivatives of an inner one,
        and so forgotten what it forgets."""
        if self.body == "the loop" or not self.loop.startswith("rewritten"):
            return False
        # JAX takes no derivatives of a while loop in reverse mode (4301248).
        return "while" not in self.loop and (self.body == "while" or self.seed % 2 == 0)

    def smaller(self) -> "list[Program]":
        """Programs that are simpler in one way, the largest steps first."""
        ways: list[dict[str, Any]] = []
        for name in ("operations", "extras"):
            parts = getattr(self, name)
            ways += [{name: parts[:i] + parts[i + 1 :]} for i in range(len(parts))]
        ways += [{"length": n} for n in (1, 2, 3, 5) if n < self.length]
        defaults = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        ways += [{k: v} for k, v in defaults.items() if getattr(self, k) != v]
        return [replace(self, **way) for way in ways]


def is_third(transformation: str) -> bool:
    return transformation.count(" over ") == 2


def minimize(program: Program, fails: Any) -> Program:
    """The smallest program found that still fails."""
    while (found := next(filter(fails, program.smaller()), None)) is not None:
        program = found
    return program


def _weighted(draw: Random, choices: dict[str, int]) -> str:
    return draw.choices(list(choices), list(choices.values()))[0]


def _switches(draw: Random) -> tuple[str, ...]:
    known = [name for name in SWITCHES if name in jax.config.meta]
    return tuple(draw.sample(known, draw.randint(1, min(3, len(known)))))


def _operation(draw: Random, known: Sequence[str]) -> Operation:
    name = draw.choice(known)
    inputs = tuple(draw.randrange(100) for _ in OPERATIONS[name].takes)
    return Operation(name, inputs, draw.randrange(960))


def _mapped(draw: Random, transformation: str) -> tuple[bool, ...]:
    weights, bias, v, m, xs = (draw.random() < 0.5 for _ in range(5))
    if transformation == "explicit mesh of steps":  # the carry is that of several examples
        v = m = True
    mapped = weights, bias, v, m, xs
    return mapped if any(mapped) else (True,) * 5
