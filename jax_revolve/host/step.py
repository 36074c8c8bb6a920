"""The step as compiled programs: forward, and pulled back."""

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from jax_revolve._compat.values import laid_out_as
from jax_revolve.host.arrays import Values, sharding_of
from jax_revolve.host.fingerprint import program
from jax_revolve.step.linearized import Activity, Cotangents, add, pull_back_step, zero_cotangents
from jax_revolve.step.loop import Loop, Operands, pick
from jax_revolve.storage.buffers import read


class CompiledStep:
    """A loop's step. Each program is compiled when it is first called.

    The carry keeps the sharding of the initial carry in each step. Cotangents of consts are added
    up in place.
    """

    def __init__(self, loop: Loop, operands: Operands, activity: Activity | None) -> None:
        self._loop = loop
        self.activity: Any = activity
        """What is differentiated; `None` of a step without a pullback."""
        carry = list(map(sharding_of, operands.carry))
        self.forward = jax.jit(loop.step, out_shardings=(carry, None))
        self.programs = [loop.jaxpr]
        """What is run, for a fingerprint: with rules of `custom_vjp` functions as they are used."""
        if activity is None:
            return
        consts = list(map(sharding_of, pick(operands.consts, activity.consts)))
        carry: Any = pick(carry, activity.carry)
        shardings = consts, carry, None
        self.pull = jax.jit(self._pull, donate_argnums=3, out_shardings=shardings)
        # Tracing it now makes a step without a pullback an error before the loop runs.
        one = operands._replace(xs=read(operands.xs, 0))
        self.programs.append(jax.make_jaxpr(self._pull_zeros)(one))

    def _pull(self, inputs: Operands, ct_carry: Values, ct_y: Values, ct_consts: Values) -> Any:
        """The cotangents before a step: of the active consts, with contributions of later steps,
        of the active carries, and of the slices of the active xs."""
        _, y = self._loop.results(self._loop.jaxpr.out_avals)
        pairs = zip(ct_y, pick(y, self.activity.ys), strict=True)
        # ys are in the host's memory, and their cotangents on no mesh.
        laid_out = [None if ct is None else laid_out_as(ct, aval) for ct, aval in pairs]
        cotangents = Cotangents(ct_carry, laid_out)
        pulled = pull_back_step(self._loop.step, self.activity, inputs, cotangents)
        return add(ct_consts, pulled.consts), pulled.carry, pulled.xs

    def _pull_zeros(self, inputs: Operands) -> Any:
        carry, y = self._loop.step(*inputs)
        active = self.activity
        pairs = (carry, active.carry), (y, active.ys), (inputs.consts, active.consts)
        return self._pull(inputs, *(zero_cotangents(*pair) for pair in pairs))


MOST_KNOWN = 16
"""The compiled steps that are kept, those that were used last."""

_known: dict[Any, CompiledStep] = {}


def compiled_step(loop: Loop, operands: Operands, activity: Activity | None = None) -> CompiledStep:
    """The step of a loop with operands like these, which may have a single slice of the xs. A step
    without activity has no pullback.

    An earlier one is used again if it is the same program, so that an optimization compiles it
    once, even if it makes another function `f` for each gradient.
    """
    placed = tuple(map(sharding_of, (*operands.consts, *operands.carry)))
    types = tuple(jax.typeof(x) for part in operands for x in part)
    counts = loop.num_consts, loop.num_carry, len(operands.xs)
    key = (program(loop.jaxpr, _identity), counts, placed, types, activity)
    step = _known.pop(key, None) or CompiledStep(loop, operands, activity)
    _known[key] = step
    for oldest in list(_known)[:-MOST_KNOWN]:
        _known.pop(oldest, None)
    return step


def _identity(value: Any) -> Hashable:
    """A key that only values with the same meaning have while the step is kept, which keeps its
    values. Those that cannot be compared have it only if they are one object, such as the functions
    of two traces of a `custom_jvp` function."""
    if hasattr(value, "eqns"):
        return program(value, _identity)
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_identity, value))
    if isinstance(value, dict):
        return tuple((str(name), _identity(part)) for name, part in value.items())
    if isinstance(value, float | complex | np.generic):  # 0.0 == -0.0, and NaN != NaN
        return type(value), np.asarray(value).dtype, np.asarray(value).tobytes()
    try:
        hash(value)
    except TypeError:
        return "one object", id(value)
    return type(value), value
