"""JAX's interpreters of programs, which know each primitive by a rule in a table of their own.

An equation of this library is to them its plain program: the loop of lax, or the sweep as equations
of lax. This is the only module that uses private names of JAX.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jax._src import core
from jax._src.state import discharge
from jax._src.state.types import AbstractRef, AccumEffect, RefEffect, WriteEffect
from jax.extend.core import ClosedJaxpr

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


def discharged(closed: ClosedJaxpr, which: Sequence[bool]) -> ClosedJaxpr:
    """The jaxpr as a pure one: inputs that are references are their contents, and their contents
    afterwards are further results. References that are made in it disappear."""
    return discharge.discharge_state(closed, should_discharge=list(which))
