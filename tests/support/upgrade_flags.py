"""Prints the options that JAX is about to turn on, as variables for `env`.

They are found by what JAX's configuration says of each option. One with which `jax.lax.scan` itself
has no gradient is left out.
"""

import sys
from collections.abc import Iterator
from typing import Any

import jax
from jax import lax


def upgrade_flags() -> Iterator[str]:
    """The names of the options that are off, and will be on."""
    options: dict[str, Any] = jax.config.meta
    for name, (kind, _, keywords) in options.items():
        is_upgrade = "enabled by default in future versions" in str(keywords.get("help"))
        if kind is bool and is_upgrade and not jax.config.values[name]:
            yield name


def has_gradient(flag: str) -> bool:
    """Whether the gradient of `jax.lax.scan` exists with this option."""
    jax.config.update(flag, True)
    try:
        jax.grad(lambda x: lax.scan(lambda c, _: (c * x, None), x, length=3)[0])(2.0)
    except NotImplementedError as error:
        print(f"{flag} is left out: {error}", file=sys.stderr)
        return False
    finally:
        jax.config.update(flag, False)
    return True


if __name__ == "__main__":
    print(*(f"{flag.upper()}=1" for flag in upgrade_flags() if has_gradient(flag)))
