"""Signatures on the pages of the API, without parameters that `jax.lax` marks as private."""

from typing import Any

import griffe


class PublicParameters(griffe.Extension):
    """Leaves out parameters such as `_split_transpose`, which are there for positional calls."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        kept = (p for p in func.parameters if not p.name.startswith("_"))
        func.parameters = griffe.Parameters(*kept)
