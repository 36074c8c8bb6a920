"""A layer with a norm, weights, dropout and a residual connection."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    linear: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, key: Any) -> None:
        self.norm = eqx.nn.LayerNorm(4)
        self.linear = eqx.nn.Linear(4, 4, key=key)
        self.dropout = eqx.nn.Dropout(0.3)

    def __call__(self, x: Any, *, key: Any = None) -> Any:
        return x + self.dropout(jnp.tanh(self.linear(self.norm(x))), key=key)

    def size(self, times: int) -> int:
        return times * self.linear.weight.size
