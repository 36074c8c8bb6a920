"""What to run (a function, its operands, compiled steps, a plan), and where a run stands.

`trace` makes a `Problem` from the arguments of `host_scan`. Each evaluation or differentiation adds
its steps and plan.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_revolve._compat.callbacks import callback_effects
from jax_revolve._compat.jaxprs import trace_tree
from jax_revolve._compat.values import as_array, is_array_type, pick, substitute, with_weak_type
from jax_revolve.engine.tape.tape import sizes_of
from jax_revolve.host.arrays import Checkpoint, Fetched, Rows, Values, is_function, slices_of
from jax_revolve.host.identity import check_known, digest, digest_of_arrays, digest_of_devices
from jax_revolve.host.step import compiled_step
from jax_revolve.jaxprs.parts import without_consts
from jax_revolve.progress.meters import Listener
from jax_revolve.schedule.actions import Action, Advance, Tape
from jax_revolve.schedule.arguments import check_integer, readable
from jax_revolve.schedule.options import Options
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import Disk, Place
from jax_revolve.step.cpu import with_windows_apart
from jax_revolve.step.linearized import find_activity, linearized
from jax_revolve.step.loop import Loop, Mask, Operands


class Problem(NamedTuple):
    """A call of `host_scan`, and how it is evaluated or differentiated.

    The call: its loop, the operands (without xs if those are fetched), the structures of the carry
    and of one y, and the options, where `requested` is the plan or a request for one.
    """

    loop: Loop
    operands: Operands
    fetched: Fetched | None
    carry_tree: Any
    y_tree: Any
    requested: Plan | Options | None = None
    consume: Callable[[int, Any], None] | None = None
    listener: Listener | None = None
    directory: Path | None = None
    save_every: float = 0.0
    asked: dict[str, Any] = {}  # noqa: RUF012
    """Options as they were passed, for the identity of the run."""

    step: Any = None
    """The `CompiledStep`, of an evaluation or a gradient."""
    restart: Mask = ()
    """The leaves of the carry that a checkpoint holds."""
    plan: Plan | None = None
    """`None` for a loop that is not differentiated."""
    derivatives: str = "value"
    """The kind of derivatives, for the identity of the run."""

    def value(self, operands: Operands) -> "Problem":
        """The evaluation, which keeps nothing."""
        step = compiled_step(self.loop, self._inputs(operands))
        return self._replace(operands=operands, step=step, restart=(True,) * len(operands.carry))

    def gradient(self, operands: Operands, differentiated: Operands) -> "Problem":
        """The differentiation with respect to some operands."""
        loop, fetched = self.loop, self.fetched
        one = operands._replace(xs=[x[:1] for x in operands.xs])  # a single slice of the xs
        if fetched is not None:
            one = one._replace(xs=[x[None] for x in fetched.example])
            differentiated = differentiated._replace(xs=[False] * len(one.xs))
        activity = find_activity(loop, [flag for part in differentiated for flag in part])
        linear = linearized(loop, activity, one)
        carry, _ = loop.results(loop.jaxpr.jaxpr.outvars)
        before = loop.operands(loop.jaxpr.jaxpr.invars).carry
        is_changed = [new is not old for new, old in zip(carry, before, strict=True)]
        restart = tuple(n and c for n, c in zip(linear.restart, is_changed, strict=True))
        plan = self.requested
        if isinstance(plan, Options):
            sizes = sizes_of(loop, linear, one)
            # A compiled step keeps all its residuals, and sums cotangents of weights itself.
            uncut = sizes.residuals if sizes.uncut is None else sizes.uncut
            none = {"weights": 0, "again": 0, "again_work": 0.0, "factors": 0}
            sizes = sizes._replace(residuals=uncut, **none)
            plan = plan.resolve(loop.length, sizes, is_while=False)
        return self._replace(
            operands=operands,
            step=compiled_step(loop, self._inputs(operands), activity),
            restart=restart,
            plan=plan,
            derivatives=f"gradient {differentiated} {restart}",
        )

    def _inputs(self, operands: Operands) -> Operands:
        """The inputs of a step, with an example slice of the xs."""
        fetched = self.fetched
        return operands._replace(xs=fetched.example if fetched else slices_of(operands.xs)(0))

    @property
    def length(self) -> int:
        return self.loop.steps

    @property
    def evaluations(self) -> int:
        """The number of steps to run, including recomputed ones."""
        return self.length if self.plan is None else self.plan.evaluations

    def actions(self, first: int, *, is_forward: bool) -> Iterator[Action]:
        """The actions from number `first` on, to the end of the plan or of the forward sweep."""
        plan = [Advance(0, self.length)] if self.plan is None else self.plan
        for action in islice(plan, first, None):
            yield action
            if is_forward and isinstance(action, Advance) and action.stop == self.length:
                return

    def slices(self, actions: int, steps: int, *, is_forward: bool) -> Iterator[Values]:
        """The slices of the xs after so many actions, and so many steps of the next action."""
        fetch = self.fetched or slices_of(self.operands.xs)
        for action in self.actions(actions, is_forward=is_forward):
            if isinstance(action, Advance | Tape):
                numbers = range(action.start + steps, action.stop)
                yield from map(fetch, map(self.loop.entry, numbers))
                steps = 0

    def storage_of(self, name: str) -> Place | None:
        """The storage of a checkpoint. With segments, slots are on the device."""
        if self.plan is None or (name.startswith("slot") and self.plan.segments):
            return None
        return self.plan.storage

    def ys(self) -> Rows:
        take, types = None, self.loop.results(self.loop.jaxpr.out_avals)[1]
        if (consume := self.consume) is not None:
            take = lambda at, y: consume(at, jax.tree.unflatten(self.y_tree, y))  # noqa: E731
        return Rows(self.length, types, take)

    def identity(self, processes: int) -> dict[str, str]:
        """What must be the same for a saved run to resume."""
        operands, fetched = self.operands, self.fetched
        check_known(self.step.calls, self.asked["version"])
        return {
            "step": self.step.text,
            "inputs": digest_of_arrays([*operands.consts, *operands.carry, *operands.xs]),
            "slices of xs": digest_of_arrays(fetched.example if fetched else ()),
            "derivatives": digest(self.derivatives),
            **{name: repr(_anywhere(value)) for name, value in self.asked.items()},
            "version of JAX": jax.__version__,
            "devices or processes": digest_of_devices(processes),
        }


def _anywhere(option: Any) -> Any:
    """An option without the directory of the run, which its storage on disk may share."""
    if isinstance(option, Plan):
        return replace(option, storage=_anywhere(option.storage))
    return replace(option, directory="/") if isinstance(option, Disk) else option


@dataclass
class Position:
    """Where a run stands in its schedule: the numbers of finished actions, of finished steps of the
    next action, of steps that the sweep has reached, and of evaluations, the current carry, and the
    checkpoints held."""

    actions: int = 0
    steps: int = 0
    reached: int = 0
    evaluations: int = 0
    carry: Values | None = None
    held: dict[str, Checkpoint] = field(default_factory=dict)

    def text(self, evaluations: int) -> str:
        """The progress in evaluations, and the bytes of the checkpoints in each place."""
        sizes = dict[str, int]()
        for _, checkpoint in sorted(self.held.items()):
            sizes[checkpoint.level] = sizes.get(checkpoint.level, 0) + checkpoint.nbytes
        levels = [f"{readable(size)} {level}" for level, size in sizes.items()]
        return ", ".join([f"{self.evaluations} of {evaluations} evaluations", *levels])


@dataclass
class Cotangents:
    """Cotangents so far of the active carries, consts and xs; and of all ys, `None` if zero."""

    carry: Values
    consts: Values
    xs: Rows
    ys: Values


def trace(f: Callable[..., Any], init: Any, xs: Any, length: int | None, reverse: bool) -> Problem:
    """Check the arguments as `jax.lax.scan` does, and trace the step."""
    fetched, traced = None, length
    if is_function(xs):
        allowed = "an int >= 1 where xs is a function"
        length, traced = check_integer("length", length, least=1, allowed=allowed), 1
        fetched = Fetched(xs, length - 1 if reverse else 0)
        xs = jax.tree.unflatten(fetched.tree, [x[None] for x in fetched.example])
    leaves, xs_tree = jax.tree.flatten(xs)
    is_numpy = [isinstance(x, np.ndarray) for x in leaves]

    def scan(in_memory: list[Any]) -> Any:
        xs = jax.tree.unflatten(xs_tree, substitute(leaves, is_numpy, in_memory))
        return lax.scan(f, init, xs, traced, reverse)

    # A NumPy array is an input here, because JAX would read and copy a constant whole.
    in_memory = pick(leaves, is_numpy)
    scanned, tree = trace_tree(scan, in_memory)
    carry_tree, y_tree = tree.children()
    carry = list(map(_like, jax.tree.leaves(init), scanned.out_avals))

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = f(jax.tree.unflatten(carry_tree, carry), jax.tree.unflatten(xs_tree, x))
        return jax.tree.leaves(results[0]), jax.tree.leaves(results[1])

    closed, consts = without_consts(jax.make_jaxpr(step)(carry, list(map(_row_type, leaves))))
    _check_effects(closed, consts)
    types = tuple(scanned.out_avals)
    loop = Loop(closed, len(consts), len(carry), types, frozenset(), reverse=bool(reverse))
    loop = loop.with_plan(int(leaves[0].shape[0] if length is None else length), None)
    loop = with_windows_apart(loop)
    consts = [as_array(_own(x)) for x in consts]
    operands = Operands(consts, carry, leaves if fetched is None else [])
    return Problem(loop, operands, fetched, carry_tree, y_tree)


def _like(value: Any, aval: Any) -> Any:
    """An initial carry as the array that `jax.lax.scan` makes of it."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return value
    return with_weak_type(jnp.asarray(_own(value), aval.dtype), aval)


def _own(value: Any) -> Any:
    """A copy of a NumPy array, which its owner may change while the loop runs."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _row_type(x: Any) -> Any:
    """The type of a slice of an array of xs."""
    if isinstance(x, np.ndarray):
        return jax.ShapeDtypeStruct(x.shape[1:], jax.dtypes.canonicalize_dtype(x.dtype))
    if x.shape[0]:
        return jax.eval_shape(lambda x: lax.index_in_dim(x, 0, keepdims=False), x)
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)


def _check_effects(closed: Any, consts: list[Any]) -> None:
    if not all(is_array_type(jax.typeof(x)) for x in consts):
        raise NotImplementedError(
            "host_scan does not support mutable array references in f: its reverse sweep runs "
            "steps again, which would change the array again. Pass the array through the carry."
        )
    effects = closed.effects - callback_effects()
    if effects:
        names = ", ".join(sorted(map(str, effects)))
        raise NotImplementedError(
            f"host_scan does not support the effects of f ({names}): its reverse sweep, and a run "
            "that is resumed, run steps again, which would repeat them. Pass consume=, which is "
            "called in the forward sweep alone, or use jax.pure_callback or jax.debug.callback."
        )
