"""Where values are kept: in the memory of the device, or in the host's.

`jax.memory.Space` is public; that a value's type tells its memory space is not said anywhere."""

from typing import Any

import jax

HOST_MEMORY = "pinned_host"


def to_host(value: Any) -> Any:
    """The value in the host's memory, next to the device."""
    return jax.device_put(value, jax.memory.Space.Host)


def to_device(value: Any) -> Any:
    return jax.device_put(value, jax.memory.Space.Device)


def is_on_host(value: Any) -> bool:
    """Whether the type of a value says that it is in the host's memory."""
    return jax.typeof(value).memory_space == jax.memory.Space.Host


def has_host_memory() -> bool:
    """Whether the devices that JAX uses by default have that kind of memory."""
    kinds = [memory.kind for memory in jax.local_devices()[0].addressable_memories()]
    return HOST_MEMORY in kinds
