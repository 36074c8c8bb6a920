"""JAX's interpreters of programs, which have a table with a rule for each primitive.

To them, an equation of this library is its plain program: lax's loop, or a sweep as equations of
lax. This is the only module that uses private names of JAX.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
from jax._src import ad_checkpoint, checkify, config, core, source_info_util, traceback_util
from jax._src.effects import JaxprInputEffect
from jax._src.interpreters import ad, remat
from jax._src.interpreters.partial_eval import Offloadable, RecomputeType
from jax._src.state import discharge
from jax._src.state.types import AbstractRef, AccumEffect, RefEffect, WriteEffect
from jax.experimental.key_reuse import _core as key_reuse

from jax_revolve._compat.jaxprs import ClosedJaxpr, name_of
from jax_revolve._compat.values import is_zero

T = TypeVar("T")

# Tracebacks and the source locations of equations show the user's frames, not ours.
PACKAGE = str(Path(__file__).parents[1])
traceback_util.register_exclusion(PACKAGE)
source_info_util.register_exclusion(PACKAGE)

filtered_traceback = traceback_util.api_boundary
"""Decorates public functions, so that JAX filters their errors like its own."""


def register_with_remat3(primitive: Any, rule: Callable[..., Any]) -> None:
    """Register `rule(policy, *operands, **params)`, which returns results, what it keeps, and a
    function of that and the operands, to run later. Without one, JAX runs a primitive again."""

    def with_policy(trace: Any, *operands: Any, **params: Any) -> Any:
        policy = getattr(trace, "policy", trace)  # the policy itself before jax 0.11
        results, kept, again = rule(policy, *operands, **params)
        if jax.__version_info__ >= (0, 12):
            return results, kept, again
        return results, partial(again, kept)

    remat.rules[primitive] = with_policy


def where_kept(policy: Callable[..., Any], eqn: Any) -> str | None:
    """Where a policy of `jax.checkpoint` keeps the results of an equation: on the "device", or in
    the memory of the "host"."""
    primitive, params = eqn.primitive, eqn.params
    if name_of(eqn) == "CheckpointName":  # with `jax_remat3`
        primitive, params = ad_checkpoint.name_p, {"name": params["_prim"].name}
    case = policy(primitive, *(v.aval for v in eqn.invars), **params)
    if isinstance(case, Offloadable):
        return "host"
    return None if not case or isinstance(case, RecomputeType) else "device"


eager_constant_folding = config.eager_constant_folding
"""The context that `jax.ensure_compile_time_eval` turns on."""

remat3 = config.remat3
"""The context that selects the coming implementation of `jax.checkpoint`, or the old one."""


def with_plain_rules() -> Any:
    """A context in which `jax.custom_vjp` is as it was. With `jax_custom_vjp3`, JAX traces each
    function that has a rule, also where its values are known."""
    return config.custom_vjp3(False)


def at_this_line() -> Any:
    """A context whose equations come from the line that enters it, also where a transformation
    makes others of them."""
    now = source_info_util.current()
    return source_info_util.user_context(now.traceback, name_stack=now.name_stack)


def is_traced_now() -> bool:
    """Whether any transformation is active. Otherwise no value is a tracer, not even a closed-over
    one."""
    return not core.trace_state_clean() or eager_constant_folding.value


def names_axes() -> bool:
    """Whether an axis has a name here: of a batch, or of a mesh."""
    return core.nonempty_axis_env()


# References


def is_reference(aval: Any) -> bool:
    """Whether values of this type are mutable references to arrays."""
    return isinstance(aval, AbstractRef)


def contents_type(aval: Any) -> Any:
    """The type of the contents of a reference; other types are returned unchanged."""
    return aval.inner_aval if isinstance(aval, AbstractRef) else aval


def is_reference_effect(effect: Any, *, written: bool = False) -> bool:
    """Whether an effect is the use of a reference; with `written`, a write to an outer one."""
    if written:
        return isinstance(effect, WriteEffect | AccumEffect)
    return isinstance(effect, RefEffect) or effect is core.internal_mutable_array_effect


def is_input_effect(effect: Any) -> bool:
    """Whether an effect is on an operand of the program. A reference is such an operand."""
    return isinstance(effect, JaxprInputEffect)


def discharged(closed: ClosedJaxpr, which: Sequence[bool]) -> ClosedJaxpr:
    """The pure jaxpr, with contents instead of references, and last contents as further results."""
    return discharge.discharge_state(closed, should_discharge=list(which), lower=False)


# Transposition

Logs: TypeAlias = dict[Any, Any]
"""What derivative rules log while JAX transposes, for `with_logs` of a pullback."""

fancy_transposes = ad.fancy_transposes
"""Rules that take accumulators of cotangents."""

linearizations = ad.primitive_linearizations
"""Rules that linearize, in place of those for forward mode."""


def pulled_back(pullback: Any, cotangents: Any) -> tuple[Any, Logs]:
    """What `jax.vjp` returned, of these cotangents, and the logs."""
    if not hasattr(pullback, "with_logs"):  # before jax 0.12
        return pullback(cotangents), {}
    return pullback.with_logs(cotangents)


def register_transpose(primitive: Any, rule: Callable[..., tuple[Sequence[Any], Logs]]) -> None:
    """Register `rule(cotangents, sums, *operands, **params)`, which returns the cotangents of the
    linear operands, and logs. `sums` are the contents of references in which the user accumulates
    cotangents, to which the rule adds them; `None` for the others."""

    def transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> Logs:
        # JAX calls the rule for zeros, too. For example, if only the gradient of a function is
        # differentiated, the cotangent of its value is zero.
        if all(map(is_zero, cotangents)):
            return {}
        references = _accumulators(operands)
        sums = [None if x is None else x[...] for x in references]
        linear = [
            ad.UndefinedPrimal(x.aval) if isinstance(x, ad.GradAccum) else x for x in operands
        ]
        results, logs = rule(cotangents, sums, *linear, **params)
        for x, reference, result in zip(operands, references, results, strict=True):
            if reference is None:
                if isinstance(x, ad.GradAccum):
                    x.accum(result)
            elif not (result is None or is_zero(result)):
                reference[...] = result
        return logs

    fancy_transposes[primitive] = transpose


def _accumulators(operands: Sequence[Any]) -> list[Any]:
    """The reference in which the user accumulates the cotangent of each operand; `None` where there
    is none, or of another type, or the same one for two operands."""
    given = [x.ref if isinstance(x, ad.RefAccum) else None for x in operands]
    referents = [None if x is None else id(core.get_referent(x)) for x in given]

    def serves(x: Any, reference: Any, referent: int | None) -> bool:
        if reference is None or referents.count(referent) > 1:
            return False
        types = x.aval, contents_type(jax.typeof(reference))
        return len({t.update(weak_type=False) for t in types}) == 1

    every = zip(operands, given, referents, strict=True)
    return [ref if serves(x, ref, referent) else None for x, ref, referent in every]


# Tables of rules

Run: TypeAlias = Callable[..., Sequence[Any]]


class Program(NamedTuple):
    """What an equation of this library is to an interpreter.

    `run(*operands, **params)` runs equations of lax. `around(interpret, params)` returns
    `interpret(params)`, where a loop of this library replaces the resulting loop of lax, so that
    its gradient keeps to the plan.
    """

    run: Run
    keys: Run | None
    """A function that uses the PRNG keys as the equation does. Derivatives have none, because
    recomputed steps use the same keys again."""
    around: Callable[[Callable[[dict[str, Any]], Any], dict[str, Any]], Any]


def _check_errors(program: Program, *args: Any, **params: Any) -> Any:
    """`checkify`, whose rules take the error, enabled errors and operands; from 0.12 a context."""
    function = params.get("function")
    loop = getattr(function, "loop", function)
    is_mapped = getattr(function, "vmaps", ()) and getattr(loop, "condition", None) is not None
    if is_mapped or getattr(loop, "has_examples", False):
        # Errors of dropped steps would show.
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


def in_own_settings(rule: Callable[..., T]) -> Callable[..., T]:
    """The rule, traced in the settings that our programs are written for, whatever the user's are.

    - Without `jax.debug_key_reuse`, which has already checked the step in the user's loop, and
      would reject a schedule because it recomputes steps.
    - With `jax_auto_pcast`, inside `jax.shard_map`: derivatives that JAX makes of our programs have
      constants that do not vary, as in `jax.lax.select` and `jnp.tanh`. The user's step is traced
      before, with the user's setting.
    """

    def run(*args: Any, **params: Any) -> T:
        if config.auto_pcast.value and not config.debug_key_reuse.value:
            return rule(*args, **params)
        with jax.debug_key_reuse(False), jax.auto_pcast(True):
            return rule(*args, **params)

    return run


def _sparsified(program: Program, env: Any, *values: Any, **params: Any) -> Any:
    """`jax.experimental.sparse.sparsify`, whose values are indices of buffers in `env`."""
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


_SPARSE = "jax.experimental.sparse.transform"

_PROGRAMS: dict[Any, Program] = {}


def register(primitive: Any, program: Program) -> None:
    """Tell every interpreter what a primitive computes."""
    _PROGRAMS[primitive] = program
    checkify.error_checks[primitive] = partial(_check_errors, program)
    signature = partial(_signature_of_keys, program)
    key_reuse.key_reuse_signatures[primitive] = key_reuse.DynamicKeyReuseSignature(signature)
    register_with_sparsify()


def register_with_sparsify() -> None:
    """Tell `sparsify` what primitives compute, once it is imported: that takes a quarter of a
    second."""
    if (module := sys.modules.get(_SPARSE)) is not None:
        for primitive, program in _PROGRAMS.items():
            for table in (module.sparse_rules_bcoo, module.sparse_rules_bcsr):
                table[primitive] = partial(_sparsified, program)
