"""`RevolveAdjoint`: Optimistix's solvers, differentiated in both modes within a memory budget."""

from collections.abc import Callable
from functools import partial
from typing import Any

try:
    import optimistix
except ModuleNotFoundError as error:
    if error.name != "optimistix":
        raise  # Optimistix exists, and lacks something itself
    raise ImportError(
        "jax_revolve.integrations.optimistix needs Optimistix, which is not installed. Install it "
        "with pip install optimistix."
    ) from error

from jax_revolve.integrations._adjoints import Options, refuse
from jax_revolve.integrations.equinox import filter_bounded_while_loop


class RevolveAdjoint(Options, optimistix.AbstractAdjoint):
    """Differentiates [Optimistix's](https://docs.kidger.site/optimistix/) solvers through their
    iterations, in forward mode and in reverse mode, to any order: `root_find`, `least_squares`,
    `minimise` and `fixed_point`.

    At a converged solution, `optimistix.ImplicitAdjoint` is better, as it stores no iterates. This
    adjoint is for solvers that stop early, whose solution depends on the initial guess, or with a
    singular Jacobian there. `optimistix.RecursiveCheckpointAdjoint` computes the same gradient, but
    has no forward mode and no second reverse mode.

    **Arguments:**

    `checkpoints`, `memory`, `block_size`, `storage`, `plan` and `progress`, as in
    [`jax_revolve.bounded_while_loop`][], where a carry is an iterate. With `max_steps=None`,
    reverse mode needs `checkpoints`.

    **Raises:**

    `TypeError` or `ValueError` if an option is not as above.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        import optimistix
        from jax_revolve.integrations.optimistix import RevolveAdjoint

        def root(a):
            solver = optimistix.Newton(rtol=1e-6, atol=1e-6)
            far = lambda x, a: x**2 - a
            return optimistix.root_find(far, solver, 1.0, a, adjoint=RevolveAdjoint()).value

        jax.grad(root)(2.0), jax.jvp(root, (2.0,), (1.0,)), jax.hessian(root)(2.0)
        ```
    """

    def apply(
        self, primal_fn: Callable[..., Any], rewrite_fn: Callable[..., Any], inputs: Any, tags: Any
    ) -> Any:
        """Run the solver with our loop. Optimistix says itself if that reaches its bound."""
        del rewrite_fn, tags
        loop = partial(filter_bounded_while_loop, throw=False, **self._given)
        return primal_fn((*inputs, loop))

    def loop(self, **_: Any) -> Any:
        """Refuse Diffrax, which calls this method."""
        refuse("optimistix", "diffrax")
