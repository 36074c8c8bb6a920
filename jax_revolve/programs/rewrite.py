"""`checkpoint_loops`: checkpoint every loop that a function runs, without changing the function."""

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

import equinox as eqx
import jax

from jax_revolve._compat.functions import Mask
from jax_revolve._compat.interpreters import filtered_traceback
from jax_revolve._compat.jaxprs import is_literal, variables, with_equations
from jax_revolve._compat.values import is_jit_disabled, is_traced
from jax_revolve.engine.plain import run_plain
from jax_revolve.jaxprs.equations import is_shard_map, source_of
from jax_revolve.jaxprs.evaluate import call_in_place
from jax_revolve.jaxprs.parts import without_consts
from jax_revolve.jaxprs.walk import inner_programs, with_inner_programs
from jax_revolve.loops.variables import change, places_of, variables_in, with_changes
from jax_revolve.programs.batched import is_batched, run_batched
from jax_revolve.programs.bounds import read_bounds
from jax_revolve.programs.budget import run_sharing
from jax_revolve.programs.choice import Choice, MaxSteps, Where
from jax_revolve.programs.derivative import Key
from jax_revolve.programs.find import (
    FoundLoop,
    NotEntered,
    find_loops,
    find_not_entered,
    outside_derivatives,
    replace_loops,
    takes_derivatives,
)
from jax_revolve.schedule.arguments import Memory, called_as
from jax_revolve.schedule.planning import Checkpoints
from jax_revolve.step.equation import READ
from jax_revolve.step.loop import Loop, is_inexact
from jax_revolve.step.references import run_on_contents, uses_references

P = ParamSpec("P")
R = TypeVar("R")


class Traced(NamedTuple):
    """A traced function. Its first inputs are the `consts` that it closes over. Loops are measured
    in the derivative in the inputs that `mask` marks: all arguments that have one, and values of a
    transformation around it. `types` are those of its array results; the others are `static`."""

    closed: Any
    consts: list[Any]
    mask: Mask
    loops: list[FoundLoop]
    types: Any
    static: Any


@overload
def checkpoint_loops(
    fun: Callable[P, R],
    /,
    *,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    min_length: int | None = None,
    max_steps: MaxSteps = None,
    where: Where | None = None,
) -> Callable[P, R]: ...


@overload
def checkpoint_loops(
    *,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    min_length: int | None = None,
    max_steps: MaxSteps = None,
    where: Where | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


@called_as('checkpoint_loops(fun, memory="2GB")(x)')
def checkpoint_loops(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    memory: Memory = None,
    checkpoints: Checkpoints = None,
    min_length: int | None = None,
    max_steps: MaxSteps = None,
    where: Where | None = None,
) -> Any:
    """`fun` with every loop that it runs checkpointed: `jax.lax.scan`, `fori_loop`, `map` and,
    given a bound, `while_loop`, in `fun` itself and in all that it calls, at any depth. A while
    loop that would take more than `max_steps` steps raises an error at run time.

    Third-party code need not change. Loops are found when
    `fun` is traced, in functions under `jax.jit`, `jax.vmap`, `jax.checkpoint`, `jax.shard_map` and
    `jax.lax.cond`, in other loops, in [`jax_revolve.Checkpointed`][] modules and in
    [`jax_revolve.checkpointed_chain`][]. They are replaced by [`jax_revolve.checkpointed_scan`][]
    and [`jax_revolve.bounded_while_loop`][], whose documentation holds for them.

    Apply it to the function that is differentiated, inside `jax.grad`: a function that takes
    gradients itself has no loops left to checkpoint, but arrays of residuals. Functions with a
    `jax.custom_jvp` or `jax.custom_vjp` rule are left alone, with the loops in them, because the
    rule determines the residuals. Loops of `equinox.internal` with `kind="checkpointed"` are
    replaced, because their rule is the loop's derivative; ours also has forward mode and higher
    orders. A warning names any other equation whose loops stay as they are.

    The result is compiled, as by `equinox.filter_jit`: once for all arguments of the same shapes
    and dtypes. Arguments that are not arrays, including Python numbers, are static: they must be
    hashable, and each value is compiled for. Variables of Flax NNX modules among the arguments,
    such as batch statistics and random counts, are updated as by `flax.nnx.jit`, also where `fun`
    is a module or its method; a module that `fun` closes over cannot change.

    **Arguments:**

    - `fun`: the function. Without it, the result is a decorator.
    - `memory`: the most bytes for all loops together: an int or a string
        such as `"512MB"`. The library chooses the plans with the smallest predicted time together.
        Loops of this library in `fun` keep their plans, whose memory counts, too. The checkpoints
        of an inner loop are multiplied by the outer block size or, in a loop that is left alone, by
        its length.
        The budget covers the same as in [`jax_revolve.checkpointed_scan`][]. Plans are chosen where
        the result is differentiated, for what is, and for one example under `jax.vmap` of it. With
        mutable references, they are for all arguments that can be differentiated.
    - `checkpoints`: instead of `memory`, for each loop, as [`jax_revolve.checkpointed_scan`][].
    - `min_length`: scans of fewer steps are left alone: an int >= 1, by default 16, or 2 with
        `memory`. While loops are not compared with it.
    - `max_steps`: a bound for while loops, as [`jax_revolve.bounded_while_loop`][] with
        `throw=True`. `"loop"` reads the bound of each loop from its condition, as `bound` of
        [`jax_revolve.typing.FoundLoop`][]; of two bounds, the smaller counts. While loops without a
        bound are left alone, and reverse mode raises an error that names them, unless `checkpoints`
        is an int, as [`jax_revolve.bounded_while_loop`][]. Loops of Equinox always use
        their bound, and without one keep Equinox's derivative.
    - `where`: a function of each [`jax_revolve.typing.FoundLoop`][] that is long enough. It returns
        whether to checkpoint the loop, or a dict of options for it: any of `checkpoints`,
        `block_size`, `memory` (not part of the shared budget), `storage`, `plan`, `progress` and
        `max_steps`, which replace those given here.

    By default, each loop gets its own default plan.

    **Returns:**

    A function with the arguments and results of `fun`.

    **Raises:**

    - `TypeError` or `ValueError` if an argument is not as above;
    - `ValueError` in reverse mode if `memory` is less than the least possible, which the error
        states, or through a while loop without a bound and without `checkpoints`;
    - what `fun` and the loops raise.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve import checkpoint_loops

        def simulate(angle):  # third-party code
            def step(i, state):
                angle, speed = state
                speed = speed - 0.01 * jnp.sin(angle)
                return angle + 0.01 * speed, speed

            return jax.lax.fori_loop(0, 1000, step, (angle, 0.0))[0]

        jax.grad(checkpoint_loops(simulate))(1.0)
        ```
    """
    checkpoint = partial(_checkpoint, Choice(checkpoints, memory, min_length, max_steps, where))
    return checkpoint if fun is None else checkpoint(fun)


def _checkpoint(choice: Choice, fun: Callable[..., Any]) -> Callable[..., Any]:
    check_function(fun)
    is_method = inspect.ismethod(fun)
    module, method = (fun.__self__, fun.__func__) if is_method else (fun, type(fun).__call__)
    if variables_in(module):  # a Flax NNX module or a method of one: its variables may change
        return wraps(method)(partial(_checkpoint(choice, method), module))

    def run(fun: Callable[..., Any], args: Any, kwargs: Any, places: Any, kinds: Any) -> Any:
        del kinds
        traced = trace(with_changes(fun, places), args, kwargs)
        _warn(find_not_entered(traced.closed), choice.shortest)
        replacements, budget = choice.replacements(traced.loops)
        _warn_of_nothing(choice, traced, replacements)
        replaced = replace_loops(traced.closed, replacements)
        inputs = jax.tree.leaves(eqx.filter((args, kwargs), eqx.is_array))
        results = run_sharing(replaced, budget, [*traced.consts, *inputs])
        structure = jax.tree.structure(traced.types)
        return eqx.combine(jax.tree.unflatten(structure, results), traced.static)

    run.__name__ = getattr(fun, "__name__", type(fun).__name__)  # it names the loops in it
    compiled = eqx.filter_jit(run)

    @filtered_traceback
    @wraps(fun)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if is_jit_disabled():
            return fun(*args, **kwargs)
        places = places_of((args, kwargs))
        result, changes = compiled(fun, args, kwargs, places, _kinds((fun, args, kwargs)))
        change((args, kwargs), changes)
        return result

    return checkpointed


def _warn(found: Sequence[NotEntered], min_length: int) -> None:
    for name, reason, longest, is_expected in found:
        if not is_expected and (longest is None or longest >= min_length):
            warnings.warn(
                f"checkpoint_loops leaves the loops in {name} as they are, so their gradient keeps "
                f"the residuals of all steps, because {reason}.",
                stacklevel=2,
            )


def _warn_of_nothing(choice: Choice, traced: Traced, replacements: Mapping[Key, Any]) -> None:
    """Warn if options were given that apply to no loop."""
    if choice.memory is choice.checkpoints is choice.where is None:
        return
    changed = {loop.key for loop in traced.loops if loop.is_own or loop.key in replacements}
    if not changed.isdisjoint(outside_derivatives(traced.closed)):
        return
    left = ", ".join(f"{loop.name} of {loop.source}" for loop in traced.loops)
    if any(loop.length is not None and loop.length < choice.shortest for loop in traced.loops):
        left += f" (scans of fewer than min_length={choice.shortest} steps are)"
    why = f"it leaves all of them alone: {left}" if left else "the function runs none"
    if takes_derivatives(traced.closed):
        why = "the function takes a derivative itself: write jax.grad(checkpoint_loops(fun))"
    warnings.warn(f"checkpoint_loops checkpoints no loop here, because {why}.", stacklevel=2)


def _kinds(tree: Any) -> Any:
    """What distinguishes equal Python numbers: `1`, `1.0` and `True`, and `0.0` and `-0.0`."""
    others = jax.tree.leaves(eqx.filter(tree, eqx.is_array, inverse=True))
    return [(type(x), str(x) if isinstance(x, float | complex) else None) for x in others]


def trace(fun: Callable[..., Any], args: Any, kwargs: Any) -> Traced:
    try:
        closed, types, static = eqx.filter_make_jaxpr(fun)(*args, **kwargs)
    except jax.errors.ConcretizationTypeError as error:
        error.add_note(
            "checkpoint_loops and explain trace the whole function, as jax.jit does: write "
            "Python's `while` and `if` over arrays as jax.lax.while_loop and jax.lax.cond, or pass "
            "the function that such a loop calls."
        )
        raise
    except getattr(sys.modules.get("flax.errors"), "TraceContextError", ()) as error:
        error.add_note(
            "Pass the NNX module as an argument, as in checkpoint_loops(lambda model, x: "
            "model(x))(model, x). The function can then change its variables."
        )
        raise
    readable = _readable(closed, read_bounds(closed))
    bounds = read_bounds(readable)
    closed, consts = without_consts(readable)
    arguments = closed.in_avals[len(consts) :]
    mask = (*(is_inexact(c) and is_traced(c) for c in consts), *map(is_inexact, arguments))
    return Traced(closed, consts, mask, find_loops(closed, mask, bounds), types, static)


def inputs_of(tree: Any) -> list[Any]:
    """The inputs of a traced function in a tree of its arguments."""
    is_input = lambda x: eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)  # noqa: E731
    return list(filter(is_input, jax.tree.leaves(tree)))


def _readable(
    jaxpr: Any, bounds: Mapping[Key, int], enclosing: tuple[Any, ...] = (), around: Key = ()
) -> Any:
    """The program with loops that we can read: batched while loops are written out, and loops with
    mutable references become pure ones. `bounds` are the bounds of its while loops."""

    def readable(index: int, old: Any) -> Any:
        eqn, key = old, (*around, index)
        if is_batched(eqn):
            run = partial(run_batched, eqn.params, bounds.get(key))
            eqn = call_in_place(run, eqn, enclosing)
        elif eqn.primitive.name in READ and uses_references(eqn):
            eqn = _on_contents(eqn, enclosing)
        within = (*enclosing, eqn) if is_shard_map(eqn) else enclosing
        programs = inner_programs(eqn)
        new = [
            _readable(program, bounds, within, (*key, part))
            if eqn is old
            else _readable(program, read_bounds(program), within)
            for part, program in enumerate(programs)
        ]
        return with_inner_programs(eqn, new) if programs else eqn

    return with_equations(jaxpr, list(map(readable, range(len(jaxpr.eqns)), jaxpr.eqns)))


def _on_contents(eqn: Any, enclosing: tuple[Any, ...]) -> Any:
    invars, obstacles = list(dict.fromkeys(variables(eqn.invars))), list[str | None]()

    def run_loop(equation: Loop, operands: list[Any]) -> Any:
        obstacles.append(equation.obstacle)
        loop = equation.with_plan(equation.length, None)
        return run_plain(loop, loop.operands(operands))

    def run(*values: Any) -> Any:
        value = dict(zip(invars, values, strict=True))
        operands = [v.val if is_literal(v) else value[v] for v in eqn.invars]
        return run_on_contents(run_loop, READ[eqn.primitive.name](eqn), operands)

    call = call_in_place(run, eqn.replace(invars=invars), enclosing)
    if obstacles[0] is None:
        return call.replace(effects=eqn.effects)
    source = source_of(eqn)
    warnings.warn(
        f"The loop of {source} runs as in jax.lax, without checkpoints, because {obstacles[0]}.",
        stacklevel=2,
    )
    return eqn


def check_function(fun: object) -> None:
    if not callable(fun):
        raise TypeError(
            f"fun must be a function, but is {fun!r} of type {type(fun).__name__}. Pass the "
            "function itself, not what it returns."
        )
