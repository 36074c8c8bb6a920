"""`RevolveAdjoint`: `diffrax.diffeqsolve`, differentiable in both modes within a memory budget."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax

try:
    import diffrax
except ModuleNotFoundError as error:
    if error.name != "diffrax":
        raise  # Diffrax exists, and lacks something itself
    raise ImportError(
        "jax_revolve.integrations.diffrax needs Diffrax, which is not installed. Install it with "
        'pip install "diffrax>=0.6.2".'
    ) from error

from jax_revolve.integrations._adjoints import Options, refuse
from jax_revolve.integrations._stages import with_scanned_stages
from jax_revolve.integrations.equinox import filter_bounded_while_loop

TRIED = "0.6.2 to 0.7.2"
"""The versions of Diffrax with the private interface that we use."""

UNSAFE_PATH = (
    "RevolveAdjoint cannot differentiate in reverse mode through diffrax.UnsafeBrownianPath, whose "
    "values cannot be computed again. Use diffrax.VirtualBrownianTree."
)

LOOP_ARGUMENTS = {
    *("solver", "stepsize_controller", "event", "saveat", "t0", "t1", "dt0", "max_steps", "terms"),
    *("args", "init_state", "inner_while_loop", "outer_while_loop", "progress_meter"),
}


class RevolveAdjoint(Options, diffrax.AbstractAdjoint):
    """Differentiates [`diffrax.diffeqsolve`](https://docs.kidger.site/diffrax/) by differentiating
    the numerical solution, in forward mode and in reverse mode, to any order.

    Reverse mode stores `checkpoints` states of the solve and recomputes the others, as
    [`jax_revolve.bounded_while_loop`][] does; forward mode costs the same as with
    `diffrax.ForwardMode`. With this one adjoint you need not choose between
    `diffrax.RecursiveCheckpointAdjoint`, which has no forward mode, `diffrax.ForwardMode`, which
    has no reverse mode, and `diffrax.DirectAdjoint`, which has both, but takes longer in forward
    mode, and whose memory in reverse mode cannot be chosen.

    **Arguments:**

    - `checkpoints`: the number of states of the solve to store at once in reverse mode, the initial
        one included: an int >= 1, or `"all"` for as many as `max_steps`.
    - `memory`: instead, the most bytes to hold, an int or a string such as `"512MB"`.
    - `block_size`, `storage`, `plan`, `progress`: further options of
        [`jax_revolve.bounded_while_loop`][]. A step of the loop is a step of the solver, accepted
        or rejected, and a `plan` is for `max_steps` of them.

    By default, the memory is enough for about `(6 * max_steps) ** (1 / 3)` states, 28 for the
    4096 steps that are Diffrax's default. All are as in [`jax_revolve.bounded_while_loop`][].
    With `max_steps=None`, reverse mode needs `checkpoints`, and higher orders of it a `max_steps`.

    **Raises:**

    - `TypeError` or `ValueError` if an option is not as above.
    - `NotImplementedError` with a version of Diffrax that works differently inside.
    - `ValueError` in reverse mode through an SDE driven by `diffrax.UnsafeBrownianPath`, whose
        values cannot be computed again. Forward mode works.

    !!! Example

        ```python
        import diffrax
        import jax
        from jax_revolve.integrations.diffrax import RevolveAdjoint

        @jax.jit
        def solve(rate):
            term = diffrax.ODETerm(lambda t, y, args: -args * y)
            solution = diffrax.diffeqsolve(
                term, diffrax.Euler(), 0.0, 1.0, 0.1, 1.0, rate, adjoint=RevolveAdjoint()
            )
            return solution.ys[-1]

        jax.grad(solve)(0.5), jax.jvp(solve, (0.5,), (1.0,)), jax.hessian(solve)(0.5)
        ```
    """

    def __check_init__(self) -> None:
        check_interface()

    def apply(self, *_: Any) -> Any:
        """Refuse Optimistix, which calls this method."""
        refuse("diffrax", "optimistix")

    def loop(
        self,
        *,
        solver: Any,
        event: Any,
        max_steps: int | None,
        terms: Any,
        throw: bool,
        passed_solver_state: bool,
        passed_controller_state: bool,
        **kwargs: Any,
    ) -> Any:
        """Diffrax's own loop, with loops of jax_revolve inside. Diffrax calls this method."""
        del throw, passed_solver_state, passed_controller_state

        # Diffrax raises its own error at the bound.
        outer_while_loop = partial(filter_bounded_while_loop, throw=False, **self._given)
        final_state = self._loop(
            solver=with_scanned_stages(solver),
            event=_as_seen_with(solver, event),
            max_steps=max_steps,
            terms=terms,
            inner_while_loop=_save_loop,
            outer_while_loop=outer_while_loop,
            **kwargs,
        )
        is_unsafe = lambda x: isinstance(x, diffrax.UnsafeBrownianPath)  # noqa: E731
        if any(map(is_unsafe, jax.tree.leaves(terms, is_leaf=is_unsafe))):
            return eqxi.nondifferentiable_backward(final_state, msg=UNSAFE_PATH, symbolic=True)
        return final_state


class _Condition(eqx.Module):
    """The condition of an event, which is given the solver that the user chose."""

    condition: Callable[..., Any]
    solver: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.condition(*args, **{**kwargs, "solver": self.solver})


def _as_seen_with(solver: Any, event: Any) -> Any:
    if event is None:
        return None
    seen = lambda condition: _Condition(condition, solver)  # noqa: E731
    conditions = jax.tree.map(seen, event.cond_fn, is_leaf=callable)
    return eqx.tree_at(lambda e: e.cond_fn, event, conditions, is_leaf=callable)


def _save_loop(cond_fun: Any, body_fun: Any, init_val: Any, *, max_steps: int, **_: Any) -> Any:
    """The loop over the times of `SaveAt(ts=...)` in a step, whose carry is two indices."""
    return filter_bounded_while_loop(
        cond_fun, body_fun, init_val, max_steps=max_steps, checkpoints="all", throw=False
    )


def check_interface() -> None:
    """Refuse a version of Diffrax whose adjoints differ from the `TRIED` versions'."""
    loop = getattr(diffrax.AbstractAdjoint, "_loop", None)
    arguments = set(inspect.signature(loop.fget(None)).parameters) if loop else set()
    if arguments != LOOP_ARGUMENTS:
        raise NotImplementedError(
            f"RevolveAdjoint does not support Diffrax {diffrax.__version__}: it relies on "
            f"private functions of Diffrax, as in versions {TRIED}. Install one of those, or "
            "use another adjoint."
        )
