"""The names of JAX that `jax_revolve._compat` uses and that no release promises to keep, which
`compat/test_names.py` looks up."""

from typing import NamedTuple


class Names(NamedTuple):
    """Names of JAX, why no public one serves, and what a user sees when they are gone: an error
    when the library is imported, unless this says otherwise."""

    names: str
    why: str
    lost: str = "ImportError or AttributeError on import"
    since: str = "0.10.2"


NAMES = (
    Names(
        "jax.extend.core: Primitive ClosedJaxpr Jaxpr Literal Var jaxpr_as_fun primitives",
        "a loop is a primitive with jaxprs as parameters; JAX extends itself the same way",
    ),
    Names(
        "jax.extend.core.Jaxpr: eqns is_high replace",
        "programs are changed without tracing them again",
        "AttributeError in checkpoint_loops",
    ),
    Names(
        "jax.extend.core.Jaxpr: _eqns",
        "what is known of a loop is to be forgotten with it, and a jaxpr takes no attributes",
        "AttributeError in any loop",
    ),
    Names("jax.core: ShapedArray Tracer eval_jaxpr", "types of values, and open jaxprs to run"),
    Names(
        "jax.interpreters.ad: Zero add_jaxvals is_undefined_primal "
        "primitive_jvps primitive_transposes zeros_like_aval",
        "a custom_vjp has no forward mode, and a custom_jvp no reverse rule of its own",
    ),
    Names("jax.interpreters.batching: fancy_primitive_batchers", "custom_vmap has no derivatives"),
    Names("jax.interpreters.mlir: lower_fun register_lowering", "primitives have to be lowered"),
    Names(
        "jax.interpreters.partial_eval: custom_partial_eval_rules dce_jaxpr dce_rules "
        "partial_eval_jaxpr_custom_rules",
        "no public function removes dead code or says what jax.checkpoint keeps of a loop",
    ),
    Names("jax.extend.core.primitives: convert_element_type_p", "only it makes types weak"),
    Names("jax.extend.core.primitives: cond_p", "lax.cond does not keep a single branch"),
    Names(
        "jax.extend.core.primitives: closed_call_p",
        "a program takes the place of a custom_vjp equation without being traced again",
    ),
    Names(
        "jax._src.core: internal_mutable_array_effect nonempty_axis_env trace_state_clean",
        "nothing public tells the effect of a new reference, and whether anything is traced, or an "
        "axis named",
    ),
    Names(
        "jax._src.config: auto_pcast debug_key_reuse eager_constant_folding",
        "contexts have no readers",
    ),
    Names(
        "jax._src.config: custom_vjp3 remat3",
        "jax.config sets them for all that runs, not for a call",
    ),
    Names(
        "jax._src.state.types: AbstractRef AccumEffect RefEffect WriteEffect",
        "the types and effects of references are not public",
    ),
    Names("jax._src.effects: JaxprInputEffect", "nothing public tells effects on operands"),
    Names("jax._src.state.discharge: discharge_state", "no public function makes jaxprs pure"),
    Names(
        "jax._src.interpreters.ad: GradAccum RefAccum UndefinedPrimal fancy_transposes "
        "primitive_linearizations",
        "only such a rule may log, and add to references in place; a primitive may have one for "
        "reverse mode alone",
    ),
    Names("jax._src.core: get_referent", "nothing public tells whether two references are one"),
    Names(
        "jax._src.traceback_util: api_boundary register_exclusion",
        "tracebacks should show the user's frames",
    ),
    Names(
        "jax._src.source_info_util: current register_exclusion user_context",
        "as for tracebacks; a loop under vmap should come from the user's line",
    ),
    Names(
        "jax._src.ad_checkpoint: name_p",
        "with jax_remat3 a name is an object, and policies ask for the primitive",
    ),
    Names("jax._src.interpreters.partial_eval: Offloadable RecomputeType", "what policies return"),
    Names("jax._src.interpreters.remat: rules", "how jax_remat3 knows what a loop keeps"),
    Names(
        "jax._src.checkify: checkify_jaxpr error_checks pjit_error_check",
        "an interpreter knows an equation by its own table, and others have no way in",
    ),
    Names(
        "jax.experimental.key_reuse._core: DynamicKeyReuseSignature KeyReuseSignature "
        "jaxpr_type_signature key_reuse_signatures",
        "as for checkify",
    ),
    Names(
        "jax.experimental.sparse.transform: SparsifyEnv arrays_to_spvalues eval_sparse "
        "sparse_rules_bcoo sparse_rules_bcsr spvalues_to_arrays spvalues_to_avals",
        "as for checkify",
        "AttributeError once jax.experimental.sparse is imported",
    ),
    Names("jax.lax: cond_p", "lax.cond leaves out a conditional with one branch"),
    Names("jax.config: jax_default_device jax_disable_jit", "nothing else tells them"),
    Names(
        "jax.core.ShapedArray: manual_axis_type sharding to_ct_aval to_tangent_aval update "
        "weak_type",
        "jax.typeof is public, what a type tells is not",
        "AttributeError in the first loop",
    ),
    Names(
        "equation scan: jaxpr length reverse unroll",
        "lax.scan checks and promotes its arguments; its equation is what it made of them",
        "NotImplementedError or KeyError in the first loop",
    ),
    Names(
        "equation while: body_jaxpr body_nconsts cond_jaxpr cond_nconsts",
        "as for scan",
        "NotImplementedError or KeyError in the first while loop",
    ),
    Names(
        "equation jit: jaxpr name",
        "checkpoint_loops has to see into calls, as into the ones below",
        "a warning that names an equation with loops that is not entered",
    ),
    *(
        Names(f"equation {equation}", "as for jit", "a warning, as for jit")
        for equation in (
            *("cond: branches", "custom_linear_solve: jaxprs", "custom_vmap_call: call"),
            *("remat2: jaxpr", "shard_map: check_vma jaxpr mesh newly_manual_axes"),
            *("custom_jvp_call: call_jaxpr jvp_jaxpr_fun", "custom_vjp_call: call_jaxpr"),
        )
    ),
    *(
        Names(f"equation {equation}", "as for jit", "a warning, as for jit", since="0.12")
        for equation in (
            *("eval_jaxpr: call_jaxpr", "program_order: call_jaxpr", "compute_on: jaxpr"),
            *("xla_metadata_call: jaxpr", "RematTraced: jaxpr", "CustomVJPTraced: traced"),
            *("CustomJVPTraced: traced", "Scan3: jaxpr length"),
        )
    ),
)
