"""The slots engine's forward sweep as a primitive.

Its derivative is the forward sweep of the loop of values and tangents, whose slots hold pairs: the
values are what this sweep holds, and the tangents are the derivative of that. So a derivative of a
gradient finds the pairs there, and runs nothing twice.

Unused ys are not computed: JAX tells a primitive which of its results are used, and XLA does not
find out by itself that a loop inside a loop only carries a buffer along.
"""

from functools import partial
from typing import Any, NamedTuple

import jax

from jax_revolve import _compat
from jax_revolve._compat import ClosedJaxpr, as_array, with_weak_type
from jax_revolve.autodiff.family import Flat
from jax_revolve.autodiff.loop_primitive import as_loop, loop_activity, loop_p
from jax_revolve.autodiff.reverse_sweep import reverse_sweep
from jax_revolve.autodiff.sweep import Active, SweepFamily, Vmap, mapped, once_more
from jax_revolve.engine.offline import run_forward_offline, tape_the_last_block
from jax_revolve.engine.online import run_forward_online
from jax_revolve.engine.plain import run_plain
from jax_revolve.engine.slots import Held
from jax_revolve.schedule.storage import Disk
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.loop import Loop, pick, plan_of, restart_of, substitute
from jax_revolve.step.once import once
from jax_revolve.step.paired import paired
from jax_revolve.step.primal_half import with_primal_half
from jax_revolve.step.pullback import Cotangents
from jax_revolve.step.steps import Steps


class Sweep(NamedTuple):
    """The forward sweep of a loop. It takes the loop's operands, and returns the carry, the ys of
    `keep_ys`, and the leaves of what is `held` for the reverse sweep of this activity. If it
    `tapes`, the last block's tape is among them."""

    jaxpr: ClosedJaxpr
    """The loop's: JAX and this library look for jaxprs among the fields of a parameter."""
    loop: Loop
    activity: Activity
    keep_ys: Mask
    tapes: bool = True
    held: Any = None
    vmaps: tuple[Vmap, ...] = ()
    output_types: tuple[Any, ...] = ()
    moves: ClosedJaxpr | None = None

    @property
    def effects(self) -> Any:
        return self.loop.effects

    def of_results(self, values: Flat) -> list[Any]:
        """Of values with one entry for each result of the loop, those of the results here."""
        carry, ys = self.loop.results(values)
        return [*carry, *pick(ys, self.keep_ys)]

    def tree(self, leaves: Flat) -> Held:
        return jax.tree.unflatten(self.held, leaves)


def run_forward_sweep(
    loop: Loop,
    activity: Activity,
    operands: Flat,
    *,
    keep_ys: Mask | None = None,
    tapes: bool = True,
) -> tuple[Flat, Held]:
    """The loop's results, and what it holds for the reverse sweep."""
    operands = list(map(as_array, operands))
    keep_ys = (True,) * (len(loop.output_types) - loop.num_carry) if keep_ys is None else keep_ys
    bare = Sweep(loop.jaxpr, loop, activity, keep_ys, tapes)
    types = tuple(map(jax.typeof, operands))

    def find() -> tuple[ClosedJaxpr, Any]:
        traced, shape = jax.make_jaxpr(partial(_run, bare), return_shape=True)(*operands)
        return traced, jax.tree.structure(shape[1])

    traced, held = once(bare, ("forward sweep", *types), find)
    out_avals = tuple(traced.out_avals)
    sweep = bare._replace(held=held, output_types=out_avals, moves=_compat.moves_of(out_avals))
    bare = sweep._replace(output_types=())
    once(bare, ("sweep", *types), lambda: traced)  # it is not traced again where it is run
    flat = _forward.run(sweep, operands)
    count = len(flat) - held.num_leaves
    return flat[:count], jax.tree.unflatten(held, flat[count:])


def _run(sweep: Sweep, *operands: Any) -> tuple[list[Any], Held]:
    loop, plan = sweep.loop, plan_of(sweep.loop)
    steps = Steps.of(loop, restart_of(loop), loop.operands(operands))
    if loop.condition is None:
        results, held = run_forward_offline(
            steps, plan, sweep.activity, sweep.keep_ys, tapes=sweep.tapes
        )
    else:
        results, held = run_forward_online(steps, plan)
    types = sweep.of_results(loop.output_types)
    return list(map(with_weak_type, results, types)), held


def _prune(used: list[bool], function: Sweep) -> Any:
    """All of the carry and of what is held is computed by the same loop as any of it."""
    num_carry, num_ys = function.loop.num_carry, sum(function.keep_ys)
    used_ys = used[num_carry : num_carry + num_ys]
    kept = [*[True] * num_carry, *used_ys, *[True] * (len(used) - num_carry - num_ys)]
    smaller = function._replace(
        keep_ys=tuple(substitute(function.keep_ys, function.keep_ys, used_ys)),
        output_types=tuple(pick(function.output_types, kept)),
    )
    if function.vmaps:
        vmaps = (v._replace(dims_out=tuple(pick(v.dims_out, kept))) for v in function.vmaps)
        smaller = smaller._replace(vmaps=tuple(vmaps))
    return kept, [True] * len(function.activity.operands), {"function": smaller}


def _prune_jvp(used: list[bool], function: Sweep, activity: Active) -> Any:
    """The tape of the last block is computed apart from all else."""
    count, held = len(used) - sum(activity.results), function.tree(range(function.held.num_leaves))
    first = count - function.held.num_leaves
    tape = [first + number for number in held.tape or []]
    kept = [number not in tape or any(used[i] for i in tape) for number in range(len(used))]
    if not all(kept):
        vmaps = (v._replace(dims_out=tuple(pick(v.dims_out, kept[:count]))) for v in function.vmaps)
        function = function._replace(
            tapes=False,
            held=jax.tree.structure(held._replace(tape=None)),
            vmaps=tuple(vmaps),
            output_types=tuple(pick(function.output_types, kept[:count])),
        )
        activity = activity._replace(results=tuple(pick(activity.results, kept[:count])))
    num_operands = len(activity.operands) + sum(activity.operands)
    return kept, [True] * num_operands, {"function": function, "activity": activity}


class _Forward(SweepFamily[Sweep]):
    def of_one(self, function: Sweep, *flat: Any) -> Flat:
        results, held = _run(function, *flat)
        return [*results, *jax.tree.leaves(held)]

    def find_activity(self, function: Sweep, operands: Flat, differentiated: Mask) -> Active:
        """Also what the reverse sweep differentiates: its derivative needs the pairs of that."""
        directed = tuple(map(max, differentiated, function.activity.operands))
        activity = loop_activity(function.loop, directed)
        active = [False] * function.held.num_leaves
        if _has_pairs(function):
            numbers = function.tree(range(len(active)))
            flags = pick(activity.carry, restart_of(function.loop))
            for part in _checkpoints(numbers):
                for number, flag in zip(part, flags, strict=True):
                    active[number] = flag
        return Active(activity.operands, (*function.of_results(activity.results), *active))

    def sweep(
        self, function: Sweep, activity: Active, operands: Flat
    ) -> tuple[Flat | None, Any, Sweep]:
        """What is held serves this derivative, too, if it is of the same loop in the same
        operands."""
        same = _half(function) is function.loop and activity.operands == function.activity.operands
        if function.vmaps or not same:
            return None, None, function
        results = self.run(function, operands)
        return results, results[len(results) - function.held.num_leaves :], function

    def run_jvp(
        self, function: Sweep, activity: Active, operands: Flat, tangents: Flat
    ) -> tuple[Flat, Flat]:
        run = partial(_jvp_of_one, function, activity)
        flat = mapped(
            run,
            function.vmaps,
            lambda vmap: pick(vmap.dims, activity.operands),
            lambda vmap: [*vmap.dims_out, *pick(vmap.dims_out, activity.results)],
        )(*operands, *tangents)
        return flat[: len(function.output_types)], flat[len(function.output_types) :]

    def pull_back(
        self, function: Sweep, activity: Active, operands: Flat, held: Any, cotangents: Flat
    ) -> Flat:
        """What is held has no cotangents, or zeros: the reverse sweep's result depends on the
        operands and its cotangents alone, the slots only make it cheap."""
        count = len(function.output_types) - function.held.num_leaves
        given = iter(cotangents)
        cts = [next(given) if active else None for active in activity.results[:count]]
        if held is not None:
            of_loop, first = function.activity, function.loop.num_carry
            ys = substitute([None] * len(function.keep_ys), function.keep_ys, cts[first:])
            pulled_back = Cotangents(
                list(map(_compat.instantiate, pick(cts[:first], of_loop.carry))),
                [None if ct is None or _compat.is_zero(ct) else ct for ct in pick(ys, of_loop.ys)],
            )
            loop = function.loop
            return reverse_sweep(loop, of_loop, operands, function.tree(held), pulled_back)
        loop = once_more(_half(function))

        def run(*operands: Any) -> Flat:
            return function.of_results(loop_p.bind(*operands, function=loop))

        def results(chosen: Flat) -> Flat:
            run_all = mapped(run, function.vmaps, wanted=lambda vmap: vmap.dims_out[:count])
            flat = run_all(*substitute(operands, activity.operands, chosen))
            return pick(flat, activity.results[:count])

        _, pullback = jax.vjp(results, pick(operands, activity.operands))
        return pullback([_compat.instantiate(ct) for ct in cts if ct is not None])[0]


def _has_pairs(sweep: Sweep) -> bool:
    """Whether the derivative is a sweep of values and tangents. The tickets of files have none."""
    is_disk = isinstance(getattr(plan_of(sweep.loop), "storage", None), Disk)
    return not is_disk and not _compat.has_rule_of_user(sweep.loop.jaxpr)


def _half(sweep: Sweep) -> Loop:
    """The loop that computes the results, and whose derivative is theirs: once a step with a
    `custom_vjp` is linearized, its results are those of the forward rule."""
    return with_primal_half(sweep.loop, sweep.activity)


def _checkpoints(held: Held) -> list[list[Any]]:
    """The parts of what is held that have an entry for each leaf of a checkpoint."""
    return [part for part in (held.slots, held.start, held.stores) if part]


def _jvp_of_one(sweep: Sweep, active: Active, *flat: Any) -> Flat:
    """The results of a sweep of one example, then the tangents of the active ones."""
    loop, count = sweep.loop, len(active.operands)
    operands, tangents = flat[:count], flat[count:]
    activity = loop_activity(loop, active.operands)
    if not _has_pairs(sweep):
        return _jvp_without_pairs(sweep, activity, operands, tangents)
    pairs = paired(loop, activity)
    both = pairs.loop._replace(restart=pairs.of_carry(restart_of(loop)))
    inputs = pairs.operands(loop.operands(operands), tangents)
    results, held = run_forward_sweep(
        both,
        loop_activity(both, pairs.of_operands(sweep.activity)),
        inputs,
        keep_ys=pairs.of_ys(sweep.keep_ys),
        tapes=False,
    )
    carry, ys = results[: both.num_carry], results[both.num_carry :]
    first_carry, first_y, first = loop.num_carry, sum(sweep.keep_ys), sum(restart_of(loop))
    dots = [dot for part in _checkpoints(held) for dot in part[first:]]
    values = held._replace(
        slots=held.slots[:first],
        start=held.start and held.start[:first],
        stores=held.stores and held.stores[:first],
    )
    if sweep.held.num_leaves > len(jax.tree.leaves(values)):
        values = values._replace(tape=_tape(sweep, operands, values))
    return [
        *(*carry[:first_carry], *ys[:first_y], *jax.tree.leaves(values)),
        *(*carry[first_carry:], *ys[first_y:], *dots),
    ]


def _tape(sweep: Sweep, operands: Flat, held: Held) -> Any:
    """The last block's tape, which has no derivative here."""
    operands, held = jax.tree.map(jax.lax.stop_gradient, (list(operands), held))
    loop = sweep.loop
    steps = Steps.of(loop.run_again(), restart_of(loop), loop.operands(operands))
    return tape_the_last_block(steps, plan_of(loop), sweep.activity, held)


def _jvp_without_pairs(sweep: Sweep, activity: Activity, operands: Flat, tangents: Flat) -> Flat:
    half = _half(sweep)

    def run(chosen: Flat) -> Flat:
        flat = substitute(operands, activity.operands, chosen)
        return sweep.of_results(as_loop(half, lambda loop: run_plain(loop, loop.operands(flat))))

    primals = pick(operands, activity.operands)
    results, dots = jax.jvp(run, (primals,), (list(tangents),))
    silent = sweep.loop._replace(progress=None)  # the results' loop shows it
    _, held = run_forward_sweep(
        silent, sweep.activity, operands, keep_ys=sweep.keep_ys, tapes=sweep.tapes
    )
    active = sweep.of_results(activity.results)
    return [*results, *jax.tree.leaves(held), *pick(dots, active)]


_forward = _Forward("checkpointed_loop_forward_sweep", _prune, _prune_jvp)
