"""The step as compiled programs: forward, and pulled back."""

from collections.abc import Hashable
from functools import partial
from typing import Any

import jax

from jax_revolve._compat.callbacks import functions_called
from jax_revolve._compat.values import laid_out_as
from jax_revolve.host.arrays import Values, sharding_of
from jax_revolve.host.identity import digest
from jax_revolve.step.linearized import Activity, Cotangents, add, pull_back_step, zero_cotangents
from jax_revolve.step.loop import Loop, Operands, pick


class CompiledStep:
    """A loop's step. Each program is compiled when it is first called.

    The carry keeps the sharding of the initial carry in each step. Cotangents of consts are added
    up in place.
    """

    def __init__(self, loop: Loop, inputs: Operands, activity: Activity | None) -> None:
        """`inputs` has a slice of the xs."""
        self._loop = loop
        self.activity: Any = activity
        """What is differentiated; `None` of a step without a pullback."""
        carry = list(map(sharding_of, inputs.carry))
        self.forward = jax.jit(loop.step, out_shardings=(carry, None))
        lowered = [self.forward.lower(*inputs)]
        if activity is not None:
            consts = list(map(sharding_of, pick(inputs.consts, activity.consts)))
            shardings = consts, pick(carry, activity.carry), None
            self.pull: Any = jax.jit(self._pull, donate_argnums=3, out_shardings=shardings)
            # This also makes a step without a pullback an error before the loop runs.
            lowered.append(self.pull.lower(inputs, *jax.eval_shape(self._zeros, inputs)))
        self.text = digest(*(program.as_text() for program in lowered))
        """The digest of the programs."""
        self.functions = [f for program in lowered for f in functions_called(program)]
        """The Python functions whose results the programs use."""

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

    def _zeros(self, inputs: Operands) -> Any:
        """Cotangents that a step may be pulled back with."""
        carry, y = self._loop.step(*inputs)
        active = self.activity
        pairs = (carry, active.carry), (y, active.ys), (inputs.consts, active.consts)
        return [zero_cotangents(*pair) for pair in pairs]


MOST_KNOWN = 16
"""The compiled steps that are kept, those that were used last."""

_known: dict[Any, CompiledStep] = {}


def compiled_step(loop: Loop, inputs: Operands, activity: Activity | None = None) -> CompiledStep:
    """The step of a loop with inputs like these. A step without activity has no pullback.

    An earlier one is used again if its text is the same, and so are the very functions that it
    calls in Python: an optimization compiles it once, even if it makes another function `f` for
    each gradient.
    """
    step = CompiledStep(loop, inputs, activity)
    placed = tuple(map(sharding_of, (*inputs.consts, *inputs.carry)))
    key = step.text, tuple(map(_identity, step.functions)), placed, inputs.types, activity
    try:
        step = _known.pop(key, step)
    except TypeError:  # a function that cannot be compared with others
        return step
    _known[key] = step
    for oldest in list(_known)[:-MOST_KNOWN]:
        _known.pop(oldest, None)
    return step


def _identity(function: Any) -> Hashable:
    """What is equal for functions that are one object, which the kept program keeps alive, or
    partial applications of one."""
    if isinstance(function, partial):
        return _identity(function.func), function.args, tuple(sorted(function.keywords.items()))
    return function
