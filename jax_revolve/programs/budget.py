"""The memory that the loops of a program share, whose plans depend on what is differentiated.

That is known only where the program is differentiated, and only as a whole: a loop does not see
which inputs of the others are. So the program is an equation, whose derivative rule in JAX's
forward mode, with which reverse mode begins, sees the tangents that are not zero, and puts the
program in its place, with that in the loops' plans. The plans are chosen when the first loop is
linearized, so values and forward mode choose none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax

from jax_revolve._compat.functions import Batched, Flat, Mask, jvp_of_nonzero
from jax_revolve._compat.interpreters import is_reference_effect
from jax_revolve._compat.jaxprs import call_jaxpr, is_literal, pruned, with_equations
from jax_revolve._compat.primitives import new_primitive
from jax_revolve._compat.values import (
    as_array,
    instantiate,
    is_linear_input,
    is_zero,
    pick,
    spread,
    substitute,
    symbolic_zero,
)
from jax_revolve.autodiff.batching import batched_dims, vmap_over
from jax_revolve.jaxprs.parts import varying_variables
from jax_revolve.jaxprs.walk import inner_programs, with_inner_programs
from jax_revolve.programs.find import FoundLoop, Key, Replacement, resolved
from jax_revolve.programs.share import (
    Outlay,
    Outlays,
    of_each_step,
    of_plan,
    of_program,
    quickest,
)
from jax_revolve.schedule.arguments import TooLittleMemory
from jax_revolve.schedule.cost import Sizes
from jax_revolve.schedule.options import Options
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.selection import candidates
from jax_revolve.step.loop import once
from jax_revolve.step.reports import silenced


@dataclass(frozen=True, eq=False)
class Budget:
    """Loops that share so many bytes, with the least predicted time together. `sharing` has their
    default replacements and block sizes. Other loops have `own` replacements. A loop of this
    library keeps its plan, and takes its part of the memory."""

    memory: int
    loops: Sequence[FoundLoop]
    sharing: Mapping[Key, tuple[Replacement, int | None]]
    own: Mapping[Key, Replacement]
    _plans: dict[Mask | None, dict[Key, Plan]] = field(default_factory=dict)

    def plans(self, mask: Mask | None) -> dict[Key, Plan]:
        """The plans of the loops if these inputs of the program are differentiated; by default, as
        the program assumes."""
        if mask not in self._plans:
            self._plans[mask] = _chosen(self, mask)
        return self._plans[mask]

    @property
    def is_chosen_early(self) -> bool:
        """Whether plans are chosen outside the program: inside `shard_map`, its axes have names
        already. If no loop shares the memory, the others may still take too much."""
        return not self.sharing or any(loop.enclosing for loop in self.loops)


@dataclass(frozen=True)
class SharedPlan(Options):
    """A loop's part of a budget, if these inputs of the program are differentiated."""

    budget: Budget | None = None
    key: Key = ()
    mask: Mask | None = None

    def resolve(self, length: int | None, sizes: Sizes, *, is_while: bool) -> Plan:
        del length, sizes, is_while
        assert self.budget is not None
        return self.budget.plans(self.mask)[self.key]


def _chosen(budget: Budget, mask: Mask | None) -> dict[Key, Plan]:
    memory, loops, sharing, own = budget.memory, budget.loops, budget.sharing, budget.own
    fewest = {
        key: replace(default, plan=Plan(_length(default), 1, block_size or 1))
        for key, (default, block_size) in sharing.items()
    }
    decided = loops[0].program.decided({**own, **fewest}, mask)

    def outlays_of(loop: FoundLoop, inside: Outlays) -> Outlays:
        key, steps = loop.key, loop.length or 1
        if key in own and own[key].plan is not None:
            # Its own memory also covers the loops inside its steps.
            return [replace(o, time=o.time * steps) for o in inside]
        default, block_size = sharing.get(key, (None, None))
        plan = default.plan if default else loop.own_plan
        measured, is_while = decided.get(key), loop.kind == "while"
        if default is None and (plan is None or measured is None):
            return [of_each_step(o, steps) for o in inside]
        if isinstance(plan, SharedPlan):
            plan = measured.plan if measured else None

        def outlay(plan: Plan | Options, inner: Outlay) -> Outlay:
            assert measured is not None
            # The residuals include the checkpoints of the loops inside.
            sizes, held = measured.sizes, inner.held - inside[0].held
            sizes = sizes._replace(residuals=sizes.residuals + held, alone=sizes.alone + held)
            plan = resolved(plan, measured.plan.length, sizes, is_while=is_while)
            found = of_plan(plan, sizes, inner, is_while=is_while)
            return replace(found, plans=((key, plan), *inner.plans) if default else inner.plans)

        assert plan is not None
        if default is None:
            outlays = [outlay(plan, inside[0])]
            for inner in inside[1:]:
                try:
                    outlays.append(outlay(plan, inner))
                except TooLittleMemory:  # its own memory is too small
                    outlays.append(outlays[0])
            return outlays
        length, least = _length(default), Plan(_length(default), 1, block_size or 1)
        if measured is None:
            return [replace(o, plans=((key, least), *o.plans)) for o in inside]
        plans = (*candidates(length, block_size=block_size, is_while=is_while), plan)
        every = [outlay(plan, inner) for inner in inside for plan in plans]
        return [outlay(least, inside[0]), outlay(plan, inside[1]), *every]

    outlays = of_program(loops, outlays_of)
    chosen = quickest(outlays, memory)
    if chosen is None:
        sharers = [loop for loop in loops if loop.is_own or loop.key in sharing]
        names = ", ".join(f"{loop.name} of {loop.source}" for loop in sharers)
        raise TooLittleMemory(
            outlays[0].memory,
            f"memory must be at least {outlays[0].memory} bytes here, but is {memory}: with "
            f"less, the loops that share it cannot be checkpointed ({names}). Pass at least "
            "that much, leave out loops of jax.lax with where, or give less memory to those of "
            "jax_revolve, which keep their plans.",
        )
    return dict(chosen.plans)


def _length(replacement: Replacement) -> int:
    length = replacement.max_steps if replacement.of.length is None else replacement.of.length
    assert length is not None
    return length


class Sharing(NamedTuple):
    """A program whose loops share a budget."""

    jaxpr: Any
    budget: Budget

    def given(self, mask: Mask) -> Any:
        """The program with plans for the derivative in these operands."""
        if self.budget.is_chosen_early:
            self.budget.plans(mask)
        return once(self, ("mask", mask), lambda: self._with_mask(self.jaxpr, mask))

    def _with_mask(self, jaxpr: Any, mask: Mask) -> Any:
        def with_mask(eqn: Any) -> Any:
            programs = inner_programs(eqn)
            new = [self._with_mask(program, mask) for program in programs]
            eqn = with_inner_programs(eqn, new) if programs else eqn
            plan = getattr(eqn.params.get("function"), "plan", None)
            if not isinstance(plan, SharedPlan) or plan.budget is not self.budget:
                return eqn
            loop = eqn.params["function"]._replace(plan=replace(plan, mask=mask))
            return eqn.replace(params={**eqn.params, "function": loop})

        return with_equations(jaxpr, list(map(with_mask, jaxpr.eqns)))


def run_sharing(jaxpr: Any, budget: Budget | None, operands: Flat) -> Flat:
    """The results of a program without consts, whose loops share the budget, if any. References,
    which JAX follows into its own equations alone, leave plans for all arguments."""
    if budget is None or any(map(is_reference_effect, jaxpr.effects)):
        return call_jaxpr(jaxpr)(*operands)
    return sharing_p.bind(*map(as_array, operands), function=Sharing(jaxpr, budget))


def _run(*operands: Any, function: Sharing) -> Flat:
    return call_jaxpr(function.jaxpr)(*operands)


def _batch(axis: Any, operands: Flat, dims: Flat, function: Sharing) -> Batched:
    run = partial(_run, function=function)
    dims_out = batched_dims(axis, run, operands, dims)
    batched = jax.make_jaxpr(vmap_over(axis, run, dims, dims_out))(*operands)
    return run_sharing(batched, function.budget, operands), dims_out


def _jvp(primals: Flat, tangents: Flat, function: Sharing) -> tuple[Flat, Flat]:
    mask = tuple(not is_zero(t) for t in tangents)
    program = function.given(mask)
    results, dots = jvp_of_nonzero(call_jaxpr(program), primals, tangents)
    jaxpr = program.jaxpr
    varying = varying_variables(jaxpr, pick(jaxpr.invars, mask))
    return results, [
        dot if not is_literal(v) and v in varying else symbolic_zero(v.aval)
        for v, dot in zip(jaxpr.outvars, dots, strict=True)
    ]


def _transpose(cotangents: Flat, *operands: Any, function: Sharing) -> Flat:
    mask = tuple(map(is_linear_input, operands))
    run = call_jaxpr(function.given(mask))
    of_linear = lambda chosen: run(*substitute(operands, mask, chosen))  # noqa: E731
    types = [x.aval for x in pick(operands, mask)]
    pullback = jax.linear_transpose(of_linear, types)
    (result,) = pullback(list(map(instantiate, cotangents)))
    return spread(result, mask)


def _prune(used: list[bool], function: Sharing) -> tuple[Any, ...]:
    """All operands stay, because the mask is of all."""
    operands = [True] * len(function.jaxpr.in_avals)
    jaxpr, _ = pruned(function.jaxpr, used, operands)
    return used, operands, {"function": function._replace(jaxpr=jaxpr)}


sharing_p = new_primitive(
    "checkpointed_program",
    implementation=_run,
    output_types=lambda *_, function: (function.jaxpr.out_avals, function.jaxpr.effects),
    batch=_batch,
    jvp=_jvp,
    transpose=_transpose,
    prune=_prune,
    keys=_run,
    recomputed=lambda params: {"function": silenced(params["function"])},
)
