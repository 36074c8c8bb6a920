"""Values in the memory of the device, or of the host.

`jax.memory.Space` is public, but that a value's type has a memory space is not documented."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import jax
import numpy as np

from jax_revolve._compat.jaxprs import ClosedJaxpr
from jax_revolve._compat.primitives import new_primitive
from jax_revolve._compat.values import AbstractValue, instantiate

HOST_MEMORY = "pinned_host"


def text_of(lowered: jax.stages.Lowered) -> str:
    """The text of a program, without large constants, whose values do not affect its memory."""
    module: Any = lowered.compiler_ir()
    return module.operation.get_asm(large_elements_limit=1000)


def to_host(value: Any) -> Any:
    """The value in the host's memory, next to the device."""
    return jax.device_put(value, jax.memory.Space.Host)


def to_device(value: Any) -> Any:
    return jax.device_put(value, jax.memory.Space.Device)


def typed_as_on_host(value: Any) -> Any:
    """The value, with the type of a value in the host's memory.

    A buffer begins as a broadcast, of which every entry is overwritten. If we moved its operand to
    the host, the host would compute the broadcast, and XLA would warn that this is slow. With the
    type alone, XLA allocates the buffer where its entries are written, and removes the broadcast.
    `lax.scan` does the same for ys in the host's memory.
    """
    (value,) = _typed_as_on_host_p.bind(value)
    return value


_typed_as_on_host_p = new_primitive(
    "typed_as_on_host",
    implementation=lambda value: [value],
    output_types=lambda t: ([t.update(memory_space=jax.memory.Space.Host)], frozenset()),
    batch=lambda axis, operands, dims: (_typed_as_on_host_p.bind(*operands), dims),
    jvp=lambda primals, tangents: (
        _typed_as_on_host_p.bind(*primals),
        _typed_as_on_host_p.bind(*map(instantiate, tangents)),
    ),
    transpose=lambda cotangents, _: list(map(to_device, map(instantiate, cotangents))),
)


def is_on_host(value: Any) -> bool:
    """Whether the type of a value says that it is in the host's memory."""
    return is_host_type(jax.typeof(value))


def is_host_type(aval: AbstractValue) -> bool:
    """Whether values of this type are in the host's memory."""
    return getattr(aval, "memory_space", None) == jax.memory.Space.Host


def transfers_of(types: Iterable[AbstractValue]) -> ClosedJaxpr | None:
    """A program that transfers a value to the host, if one of these types is there.

    JAX lowers transfers between memories only if it finds one, in the program or in programs that
    are parameters of its equations. It cannot look into a primitive whose lowering is a Python
    function. Without such a program among the parameters, JAX silently omits all transfers.
    """
    return _a_transfer() if any(map(is_host_type, types)) else None


@cache
def _a_transfer() -> ClosedJaxpr:
    with jax.disable_jit(False):
        return jax.make_jaxpr(to_host)(np.float32(0))


def has_host_memory() -> bool:
    """Whether the device that JAX uses by default has that kind of memory."""
    kinds = [memory.kind for memory in default_device().addressable_memories()]
    return HOST_MEMORY in kinds


def default_device() -> Any:
    """The device that JAX uses by default."""
    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if device is None or isinstance(device, str):
        return jax.local_devices(backend=device)[0]
    return device
