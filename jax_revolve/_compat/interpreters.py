"""JAX's interpreters of programs, which know each primitive by a rule in a table of their own.

An equation of this library is to them its plain program: the loop of lax, or the sweep as equations
of lax. This is the only module that uses private names of JAX.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
from jax._src import checkify, config, core, source_info_util, traceback_util
from jax._src.effects import JaxprInputEffect
from jax._src.state import discharge
from jax._src.state.types import AbstractRef, AccumEffect, RefEffect, WriteEffect
from jax.experimental import jet
from jax.experimental.key_reuse import _core as key_reuse

from jax_revolve._compat.jaxprs import ClosedJaxpr

T = TypeVar("T")

# Tracebacks and the source locations of equations show the user's frames, not the ones in here.
PACKAGE = str(Path(__file__).parents[1])
traceback_util.register_exclusion(PACKAGE)
source_info_util.register_exclusion(PACKAGE)

filtered_traceback = traceback_util.api_boundary
"""Decorates public functions, whose errors JAX then filters like those of its own."""

eager_constant_folding = config.eager_constant_folding
"""The context that `jax.ensure_compile_time_eval` turns on."""

remat3 = config.remat3
"""The context in which `jax.checkpoint` is as JAX is about to have it, or as it was."""


def is_traced_now() -> bool:
    """Whether any transformation is under way. Otherwise no value is a tracer, closed over or not,
    and nothing is differentiated."""
    return not core.trace_state_clean() or eager_constant_folding.value


# References


def is_reference(aval: Any) -> bool:
    """Whether values of this type are mutable references to arrays."""
    return isinstance(aval, AbstractRef)


def contents_type(aval: Any) -> Any:
    """The type of the contents of a reference. Other types are themselves."""
    return aval.inner_aval if isinstance(aval, AbstractRef) else aval


def is_reference_effect(effect: Any, *, written: bool = False) -> bool:
    """Whether an effect is the use of a reference, or the write to one that was made before."""
    if written:
        return isinstance(effect, WriteEffect | AccumEffect)
    return isinstance(effect, RefEffect) or effect is core.internal_mutable_array_effect


def is_input_effect(effect: Any) -> bool:
    """Whether an effect is on an operand of the program. A reference is such an operand."""
    return isinstance(effect, JaxprInputEffect)


def discharged(closed: ClosedJaxpr, which: Sequence[bool]) -> ClosedJaxpr:
    """The pure jaxpr: references are their contents, whose last values are further results."""
    return discharge.discharge_state(closed, should_discharge=list(which), lower=False)


# Tables of rules

Run: TypeAlias = Callable[..., Sequence[Any]]


class Program(NamedTuple):
    """What an equation of this library is to an interpreter.

    `run(*operands, **params)` are equations of lax. `around(interpret, params)` is what
    `interpret(params)` makes of them. For a loop, it puts a loop of this library in the place of
    the one of lax that comes out, so that its gradient keeps to the plan.
    """

    run: Run
    keys: Run | None
    """What uses the PRNG keys among the operands. A recomputed step uses keys for which the first
    computation answers, so a derivative has none."""
    around: Callable[[Callable[[dict[str, Any]], Any], dict[str, Any]], Any]


def _check_errors(program: Program, *args: Any, **params: Any) -> Any:
    """`checkify`, whose rules take the error, enabled errors and operands; from 0.12 a context."""
    function = params.get("function")
    loop = getattr(function, "loop", function)
    is_mapped = getattr(function, "vmaps", ()) and getattr(loop, "condition", None) is not None
    if is_mapped or getattr(loop, "has_examples", False):
        # Errors of steps that are dropped would be seen.
        raise ValueError(
            "Checkify does not support batched while-loops (checkify-of-vmap-of-while). Move the "
            "vmap to the outer level, to get vmap-of-checkify-of-while."
        )
    count = checkify.pjit_error_check.__code__.co_argcount
    *context, error, enabled = args[:count]
    operands = args[count:]

    def interpret(params: dict[str, Any]) -> Any:
        closed = jax.make_jaxpr(partial(program.run, **params))(*operands)
        return checkify.checkify_jaxpr(*context, closed, enabled, error, *operands)

    return program.around(interpret, params)


def _signature_of_keys(program: Program, eqn: Any) -> Any:
    """`jax.debug_key_reuse`, which reads programs and computes nothing."""
    if program.keys is None:
        return key_reuse.KeyReuseSignature()
    closed = jax.make_jaxpr(partial(program.keys, **eqn.params))(*(v.aval for v in eqn.invars))
    return key_reuse.jaxpr_type_signature(closed.jaxpr)


def without_key_checks(rule: Callable[..., T]) -> Callable[..., T]:
    """The rule, in which `jax.debug_key_reuse` does not check what is traced. It checks the step
    where the user's loop is traced, and a schedule, which recomputes steps, would not pass."""

    def run(*args: Any, **params: Any) -> T:
        if not config.debug_key_reuse.value:
            return rule(*args, **params)
        with jax.debug_key_reuse(False):
            return rule(*args, **params)

    return run


def _sparsified(program: Program, env: Any, *values: Any, **params: Any) -> Any:
    """`jax.experimental.sparse.sparsify`, whose values are numbers of buffers in `env`."""
    transform = sys.modules[_SPARSE]
    types = transform.spvalues_to_avals(env, values)
    arrays = transform.spvalues_to_arrays(env, values)

    def interpret(params: dict[str, Any]) -> Any:
        closed = jax.make_jaxpr(partial(program.run, **params))(*types)
        inside = transform.SparsifyEnv()
        inputs = transform.arrays_to_spvalues(inside, arrays)
        results = transform.eval_sparse(closed.jaxpr, closed.consts, inputs, inside)
        return transform.spvalues_to_arrays(inside, list(results))

    return transform.arrays_to_spvalues(env, program.around(interpret, params))


def _taylor_series(program: Program, primals: Any, series: Any, **params: Any) -> Any:
    """`jax.experimental.jet`, which knows functions under `jax.jit`."""
    call = jax.make_jaxpr(jax.jit(partial(program.run, **params)))(*primals).eqns[0]
    return jet.jet_rules[call.primitive](primals, series, **call.params)


_SPARSE = "jax.experimental.sparse.transform"

LATE = {_SPARSE}
"""An interpreter that takes a quarter of a second to import, and refuses an equation without a
rule: it gets its rules once it is imported."""

_PROGRAMS: dict[Any, Program] = {}


def register(primitive: Any, program: Program) -> None:
    """Let every interpreter know what a primitive computes."""
    _PROGRAMS[primitive] = program
    checkify.error_checks[primitive] = partial(_check_errors, program)
    signature = partial(_signature_of_keys, program)
    key_reuse.key_reuse_signatures[primitive] = key_reuse.DynamicKeyReuseSignature(signature)
    jet.jet_rules[primitive] = partial(_taylor_series, program)
    if _SPARSE in sys.modules:
        register_late(_SPARSE)


def register_late(name: str) -> None:
    """Register in one of the `LATE` interpreters, which is imported by now."""
    LATE.discard(name)
    module = sys.modules[name]
    for primitive, program in _PROGRAMS.items():
        for table in (module.sparse_rules_bcoo, module.sparse_rules_bcsr):
            table[primitive] = partial(_sparsified, program)
