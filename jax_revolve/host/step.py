"""The step as compiled programs: forward, and pulled back."""

from collections.abc import Hashable, Iterable
from types import MethodType
from typing import Any

import jax

from jax_revolve._compat.callbacks import PythonCall, python_calls
from jax_revolve._compat.values import laid_out_as, pick
from jax_revolve.host.arrays import Values, sharding_of
from jax_revolve.host.identity import digest
from jax_revolve.step.linearized import Activity, Cotangents, add, linearized
from jax_revolve.step.loop import Loop, Mask, Operands


class CompiledStep:
    """A loop's step, as programs that are compiled when first called. The carry keeps the sharding
    of the initial carry in each step. Cotangents of consts are summed in place."""

    def __init__(self, loop: Loop, inputs: Operands, activity: Activity | None) -> None:
        """`inputs` has a slice of the xs."""
        self._loop = loop
        self.log_tree: Any = None
        self.activity: Any = activity
        """The activity; `None` for a step without a pullback."""
        carry, step = list(map(sharding_of, inputs.carry)), loop.step
        if activity is not None:
            one = inputs._replace(xs=[x[None] for x in inputs.xs])
            self._linearized, step = linearized(loop, activity, one), self._advance
        self.forward = jax.jit(step, out_shardings=(carry, None))
        lowered = [self.forward.lower(*inputs)]
        if activity is not None:
            places = list(map(sharding_of, inputs.consts))
            shardings = pick(places, activity.consts), pick(carry, activity.carry), None
            self.pull: Any = jax.jit(self._pull, donate_argnums=3, out_shardings=shardings)
            # Lowering now raises the error of a step without reverse mode before the loop runs.
            _, ys = loop.results(loop.jaxpr.out_avals)
            cotangents = (
                _cotangent_types(map(jax.typeof, inputs.carry), carry, activity.carry),
                _cotangent_types(ys, [None] * len(ys), activity.ys),
                _cotangent_types(map(jax.typeof, inputs.consts), places, activity.consts),
            )
            lowered.append(self.pull.lower(inputs, *cotangents))
            self.log_types = self._linearized.log_types
            self.log_tree = self._linearized.log_tree
        self.text = digest(*(program.as_text() for program in lowered))
        """The digest of the programs."""
        self.calls = [call for program in lowered for call in python_calls(program)]
        """The Python functions that the programs call."""

    def _advance(self, consts: Values, carry: Values, x: Values) -> tuple[Values, Values]:
        step, inputs = self._linearized, [*consts, *consts, *carry, *carry, *x]
        return self._loop.results(step.run(step.results, inputs))

    def _pull(self, inputs: Operands, ct_carry: Values, ct_y: Values, ct_consts: Values) -> Any:
        """The cotangents before a step: of the active consts so far, carries, and slices of xs, and
        what rules log."""
        _, y = self._loop.results(self._loop.jaxpr.out_avals)
        pairs = zip(ct_y, pick(y, self.activity.ys), strict=True)
        # The ys are in the host's memory, so their cotangents are on no mesh.
        laid_out = [None if ct is None else laid_out_as(ct, aval) for ct, aval in pairs]
        consts, carry, x = inputs
        inputs_of_code = [*consts, *consts, *carry, *carry, *x]
        found = self._linearized.pull_back(inputs_of_code, Cotangents(ct_carry, laid_out))
        return add(ct_consts, found.consts), found.carry, found.xs


def _cotangent_types(types: Iterable[Any], shardings: Values, active: Mask) -> Values:
    """The types of the active values' cotangents, with the values' shardings."""
    pairs = zip((t.to_tangent_aval() for t in types), shardings, strict=True)
    return pick([jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=s) for t, s in pairs], active)


MOST_KNOWN = 16
"""The number of compiled steps to keep, the last used ones."""

_known: dict[Any, CompiledStep] = {}


def compiled_step(loop: Loop, inputs: Operands, activity: Activity | None = None) -> CompiledStep:
    """The step of a loop with inputs like these, without a pullback if `activity` is `None`.

    We reuse an earlier step with the same text that calls the same Python functions. So an
    optimization compiles its step once, even if it makes a new function `f` for each gradient.
    """
    step = CompiledStep(loop, inputs, activity)
    placed = tuple(map(sharding_of, (*inputs.consts, *inputs.carry)))
    calls = tuple(map(_identity, step.calls))
    key = step.text, calls, placed, inputs.types, activity, step.log_tree
    step = _known.pop(key, step)
    _known[key] = step
    for oldest in list(_known)[:-MOST_KNOWN]:
        _known.pop(oldest, None)
    return step


def _identity(call: PythonCall) -> Hashable:
    """A key that is equal for calls of the same function, which a kept step keeps alive."""
    is_method = isinstance(call.function, MethodType)  # another object each time
    return (call.function if is_method else id(call.function)), call.is_used
