"""Steps with effects: each happens as often as a step runs, whether anybody reads its values or
not, and what it returns is used as it was."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from jax_revolve import checkpointed_scan, plan
from jax_revolve._compat.callbacks import callback_effects

pytestmark = pytest.mark.usefixtures("compile_quickly")

LENGTH = 7
CHECKPOINTED = partial(checkpointed_scan, checkpoints=2)
happened: Counter[str] = Counter()


def seen(*_: Any) -> None:
    happened["it"] += 1


def object_of_hijax(x: Any) -> Any:
    """An object with an effect, whose result nobody reads."""
    from jax.experimental import hijax

    class Seen(hijax.HiPrim):
        def __init__(self, aval: Any) -> None:
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            self.effects = callback_effects()
            super().__init__()

        def expand(self, *args: Any) -> Any:
            jax.debug.callback(seen)
            return args[0] * 1.0

        def vjp_fwd(self, nzs_in: Any, /, *args: Any) -> Any:
            return self(*args), None

        def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
            return (outgrad,)

        def jvp(self, primals: Any, tangents: Any) -> Any:
            return self(*primals), tangents[0]

    Seen(jax.typeof(x))(x)
    return x


def written(x: Any) -> Any:
    total = jax.new_ref(0.0)
    total[...] += 1.0
    jax.debug.callback(seen, total[...])
    return x


def of_io(x: Any, *, ordered: bool = False) -> Any:
    io_callback(seen, None, lax.stop_gradient(x), ordered=ordered)
    return x


def of_debug(x: Any) -> Any:
    jax.debug.callback(seen)
    return x


EFFECTS: dict[str, Callable[[Any], Any]] = {
    "debug": of_debug,
    "io": of_io,
    "ordered io": partial(of_io, ordered=True),
    "references": written,
    **({"hijax": object_of_hijax} if jax.__version_info__ >= (0, 12) else {}),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
def test_effects_happen_as_often_as_steps_run(effect: Any) -> None:
    def run(scan: Any, x: Any) -> Any:
        return scan(lambda c, _: (jnp.sin(effect(c)), c), x, length=LENGTH)[0]

    def times(fun: Any) -> int:
        happened.clear()
        jax.block_until_ready(jax.jit(fun)(0.5))
        jax.effects_barrier()
        return happened["it"]

    f = partial(run, CHECKPOINTED)
    assert times(lambda x: (f(x), x)[1]) == LENGTH  # nobody reads its results
    assert times(lambda x: jax.jvp(f, (x,), (x,))[0]) == LENGTH
    assert times(lambda x: (jax.grad(f)(x), x)[1]) == plan(LENGTH, 2).evaluations


@pytest.mark.unchecked
def test_what_an_effect_returns_is_read_once() -> None:
    """It depends on no input, so it was computed once more, for all steps. Here no step runs again,
    so that each number is used as it came."""
    numbers = count(1)

    def number() -> Any:
        return np.float64(next(numbers))

    def step(c: Any, _: Any) -> Any:
        return c * io_callback(number, jax.ShapeDtypeStruct((), jnp.float64)), None

    run = lambda c: checkpointed_scan(step, c, length=4, checkpoints="all", block_size=4)[0]  # noqa: E731
    value, slope = jax.value_and_grad(run)(1.0)
    assert value == slope == 24
    assert next(numbers) == 5
