"""Where values are kept: in the memory of the device, or in the host's.

`jax.memory.Space` is public; that a value's type tells its memory space is not said anywhere."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import jax
import numpy as np

from jax_revolve._compat.jaxprs import ClosedJaxpr
from jax_revolve._compat.values import AbstractValue

HOST_MEMORY = "pinned_host"


def to_host(value: Any) -> Any:
    """The value in the host's memory, next to the device."""
    return jax.device_put(value, jax.memory.Space.Host)


def to_device(value: Any) -> Any:
    return jax.device_put(value, jax.memory.Space.Device)


def is_on_host(value: Any) -> bool:
    """Whether the type of a value says that it is in the host's memory."""
    return jax.typeof(value).memory_space == jax.memory.Space.Host


def moves_of(types: Iterable[AbstractValue]) -> ClosedJaxpr | None:
    """A program that moves a value to the host, if one of these types is there.

    JAX lowers moves between memories only if it finds one to another memory than the device's, in
    the program or in those that are parameters of its equations. It cannot look into a primitive
    whose lowering is a Python function, so such a program has to be among its parameters: without
    it all of the moves are left out, quietly.
    """
    on_host = any(getattr(t, "memory_space", None) == jax.memory.Space.Host for t in types)
    return _a_move() if on_host else None


@cache
def _a_move() -> ClosedJaxpr:
    with jax.disable_jit(False):
        return jax.make_jaxpr(to_host)(np.float32(0))


def has_host_memory() -> bool:
    """Whether the devices that JAX uses by default have that kind of memory."""
    kinds = [memory.kind for memory in jax.local_devices()[0].addressable_memories()]
    return HOST_MEMORY in kinds
