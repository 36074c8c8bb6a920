"""Every use of JAX outside its stable public API.

Tried on jax 0.7.2, 0.10.2 and 0.12.0.1. What each entry stands on:

- `jax.extend.core`: `Primitive`, and jaxprs with their equations, variables and literals.
- `jax.interpreters`: the registries of derivative, transposition, partial evaluation, batching,
  dead code and lowering rules; dead-code elimination; symbolic zeros.
- the parameters of JAX's `scan` equation, whose names changed in 0.12 (`_read_scan`), and of its
  `while` equation.
- `get_asm` of a lowered program's MLIR module (`text_of`).
- `jax.lax.cond_p` and its parameter (`kept_whole`).
- the names of the equations that run other jaxprs, and of their parameters (`equations`).
- the names of the equations that read and write entries of arrays, and of their parameters
  (`updates`).
"""

from jax_revolve._compat.batched import with_single_predicates as with_single_predicates
from jax_revolve._compat.callbacks import callback_effects as callback_effects
from jax_revolve._compat.callbacks import is_first_device as is_first_device
from jax_revolve._compat.equations import call_in_place as call_in_place
from jax_revolve._compat.equations import inner_programs as inner_programs
from jax_revolve._compat.equations import is_recomputed as is_recomputed
from jax_revolve._compat.equations import is_shard_map as is_shard_map
from jax_revolve._compat.equations import name_in as name_in
from jax_revolve._compat.equations import operands_like as operands_like
from jax_revolve._compat.equations import read_loop as read_loop
from jax_revolve._compat.equations import rule_with_loops as rule_with_loops
from jax_revolve._compat.equations import run_each as run_each
from jax_revolve._compat.equations import run_in_place as run_in_place
from jax_revolve._compat.equations import source_of as source_of
from jax_revolve._compat.equations import varies_unevenly as varies_unevenly
from jax_revolve._compat.equations import with_inner_programs as with_inner_programs
from jax_revolve._compat.equations import within as within
from jax_revolve._compat.inlining import inlined as inlined
from jax_revolve._compat.jaxprs import ClosedJaxpr as ClosedJaxpr
from jax_revolve._compat.jaxprs import between as between
from jax_revolve._compat.jaxprs import call_jaxpr as call_jaxpr
from jax_revolve._compat.jaxprs import filled_with_a_number as filled_with_a_number
from jax_revolve._compat.jaxprs import function_of as function_of
from jax_revolve._compat.jaxprs import has_equation as has_equation
from jax_revolve._compat.jaxprs import has_rule_of_user as has_rule_of_user
from jax_revolve._compat.jaxprs import inner_jaxprs as inner_jaxprs
from jax_revolve._compat.jaxprs import is_literal as is_literal
from jax_revolve._compat.jaxprs import kept_whole as kept_whole
from jax_revolve._compat.jaxprs import part_of as part_of
from jax_revolve._compat.jaxprs import pruned as pruned
from jax_revolve._compat.jaxprs import results_in as results_in
from jax_revolve._compat.jaxprs import results_of as results_of
from jax_revolve._compat.jaxprs import run_equation as run_equation
from jax_revolve._compat.jaxprs import variables as variables
from jax_revolve._compat.jaxprs import varying_variables as varying_variables
from jax_revolve._compat.jaxprs import with_equations as with_equations
from jax_revolve._compat.jaxprs import with_functions as with_functions
from jax_revolve._compat.jaxprs import with_outputs as with_outputs
from jax_revolve._compat.jaxprs import without_consts as without_consts
from jax_revolve._compat.jaxprs import without_dead_code as without_dead_code
from jax_revolve._compat.loops import LoopEquation as LoopEquation
from jax_revolve._compat.loops import run_around_loop as run_around_loop
from jax_revolve._compat.memories import HOST_MEMORY as HOST_MEMORY
from jax_revolve._compat.memories import default_device as default_device
from jax_revolve._compat.memories import has_host_memory as has_host_memory
from jax_revolve._compat.memories import is_host_type as is_host_type
from jax_revolve._compat.memories import is_on_host as is_on_host
from jax_revolve._compat.memories import moves_of as moves_of
from jax_revolve._compat.memories import program_bytes as program_bytes
from jax_revolve._compat.memories import text_of as text_of
from jax_revolve._compat.memories import to_device as to_device
from jax_revolve._compat.memories import to_host as to_host
from jax_revolve._compat.memories import typed_as_on_host as typed_as_on_host
from jax_revolve._compat.memories import usable_bytes as usable_bytes
from jax_revolve._compat.primitives import Primitive as Primitive
from jax_revolve._compat.primitives import Split as Split
from jax_revolve._compat.primitives import define_derivative as define_derivative
from jax_revolve._compat.primitives import new_primitive as new_primitive
from jax_revolve._compat.updates import Uses as Uses
from jax_revolve._compat.updates import reads as reads
from jax_revolve._compat.updates import updated as updated
from jax_revolve._compat.updates import with_slices as with_slices
from jax_revolve._compat.updates import write_unless as write_unless
from jax_revolve._compat.values import AbstractValue as AbstractValue
from jax_revolve._compat.values import SymbolicZero as SymbolicZero
from jax_revolve._compat.values import as_array as as_array
from jax_revolve._compat.values import bytes_of as bytes_of
from jax_revolve._compat.values import explicit_mesh as explicit_mesh
from jax_revolve._compat.values import instantiate as instantiate
from jax_revolve._compat.values import is_array_type as is_array_type
from jax_revolve._compat.values import is_jit_disabled as is_jit_disabled
from jax_revolve._compat.values import is_linear_input as is_linear_input
from jax_revolve._compat.values import is_symbolic as is_symbolic
from jax_revolve._compat.values import is_traced as is_traced
from jax_revolve._compat.values import is_zero as is_zero
from jax_revolve._compat.values import laid_out as laid_out
from jax_revolve._compat.values import laid_out_as as laid_out_as
from jax_revolve._compat.values import shape_on_a_device as shape_on_a_device
from jax_revolve._compat.values import symbolic_zero as symbolic_zero
from jax_revolve._compat.values import tangent_type as tangent_type
from jax_revolve._compat.values import vary as vary
from jax_revolve._compat.values import varying_axes as varying_axes
from jax_revolve._compat.values import with_weak_type as with_weak_type
from jax_revolve._compat.values import zeros as zeros
