"""An estimate of a step's time, from its jaxpr, for choosing between plans.

Only the ratio between recomputing a step and keeping its residuals matters. The constants come from
a profile, as in `schedule.cost`. Matrix products count by their operations, other operations by the
bytes of their results, and kernels of their own also by their launch.
"""

from collections.abc import Iterable
from math import prod
from typing import Any

from jax_revolve._compat.jaxprs import ClosedJaxpr
from jax_revolve._compat.values import bytes_of, shape_on_a_device
from jax_revolve.jaxprs.walk import function_of, inner_jaxprs, inner_programs
from jax_revolve.profiles.profile import Profile
from jax_revolve.step.loop import Loop
from jax_revolve.step.operations import NAMED, having

_FREE, _TRANSCENDENTAL, _SLOW = having("free"), having("transcendental"), having("slow")
_KERNEL, _CUBIC = having("kernel"), having("cubic")


def work_of(jaxpr: ClosedJaxpr, profile: Profile) -> float:
    """The time of evaluating a jaxpr once, on a device, in nanoseconds."""
    return work_of_equations(jaxpr.eqns, profile)


def work_of_equations(eqns: Iterable[Any], profile: Profile) -> float:
    return sum(_work(eqn, profile) for eqn in eqns)


def is_estimated(jaxpr: ClosedJaxpr) -> bool:
    """Whether `work_of` can estimate the jaxpr: it has no loop of unknown length and no operation
    of which nothing is known, such as a callback."""
    return all(
        eqn.primitive.name != "while"
        and (eqn.primitive.name in NAMED or inner_programs(eqn))
        and _length(eqn) is not None
        and all(map(is_estimated, inner_jaxprs(eqn)))
        for eqn in jaxpr.eqns
    )


def _length(eqn: Any) -> int | None:
    """The number of iterations of a loop, `None` if it is unknown; 1 for other equations."""
    function = function_of(eqn)
    return function.length if isinstance(function, Loop) else eqn.params.get("length", 1)


def _work(eqn: Any, profile: Profile) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        return max(work_of(branch, profile) for branch in params["branches"])
    if inner := inner_jaxprs(eqn):
        return (_length(eqn) or 1) * sum(work_of(jaxpr, profile) for jaxpr in inner)
    inputs, outputs = ([v.aval for v in vs] for vs in (eqn.invars, eqn.outvars))
    operations = _product_operations(eqn, sum(prod(shape_on_a_device(t)) for t in outputs))
    if operations is not None:
        return profile.kernel + operations * profile.product_operation
    if name in _FREE:
        return 0.0
    if name.startswith("reduce_"):
        return bytes_of(inputs) * profile.byte
    if name in _TRANSCENDENTAL:
        return bytes_of(outputs) * profile.transcendental_byte
    if name in _SLOW:
        return bytes_of(outputs) * profile.slow_byte
    return profile.kernel * (name in _KERNEL) + bytes_of(outputs) * profile.byte


def _product_operations(eqn: Any, size: int) -> float | None:
    """The additions and multiplications of a product with a result of this size; `None` for any
    other operation."""
    name, params = eqn.primitive.name, eqn.params
    shapes = [shape_on_a_device(v.aval) for v in eqn.invars]
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return 2 * size * prod(shapes[0][axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = shapes[1]
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2 * size * prod(kernel) / max(features, 1)
    if name in _CUBIC:
        return 2 * size * max(shapes[0][-1:], default=1)
    return None
