"""`RevolveAdjoint` against Optimistix's own adjoints."""

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest

from jax_revolve import checkpoint_loops, explain
from jax_revolve.integrations.diffrax import RevolveAdjoint as ForDiffrax
from jax_revolve.integrations.optimistix import RevolveAdjoint

pytestmark = pytest.mark.usefixtures("compile_quickly")

close = partial(np.testing.assert_allclose, rtol=1e-6)
tight: Any = {"rtol": 1e-10, "atol": 1e-10}
A = np.array([1.5, 0.7])
START = np.array([1.0, 1.0])


def residuals(y: Any, a: Any) -> Any:
    return jnp.stack([y[0] ** 2 + a[1] * y[1] - a[0], jnp.sin(y[0]) + y[1] * a[0] - a[1]])


def squares(y: Any, a: Any) -> Any:
    return jnp.sum(residuals(y, a) ** 2)


def map_(y: Any, a: Any) -> Any:
    return 0.4 * jnp.cos(a * y) + 0.1 * y[::-1]


PROBLEMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]] = {
    "Newton": (optimistix.root_find, residuals, optimistix.Newton(**tight)),
    "Dogleg": (optimistix.least_squares, residuals, optimistix.Dogleg(**tight)),
    "Levenberg-Marquardt": (
        optimistix.least_squares,
        residuals,
        optimistix.LevenbergMarquardt(**tight),
    ),
    "BFGS": (optimistix.minimise, squares, optimistix.BFGS(**tight)),
    "fixed point": (optimistix.fixed_point, map_, optimistix.FixedPointIteration(**tight)),
}


def solve(name: str, adjoint: Any, a: Any, **options: Any) -> Any:
    run, fun, solver = PROBLEMS[name]
    given: Any = {"max_steps": 64, "adjoint": adjoint, **options}
    return jnp.sum(run(fun, solver, START, a, **given).value ** 2)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gradient_of_the_iterations(name: str) -> None:
    wanted = jax.value_and_grad(partial(solve, name, optimistix.RecursiveCheckpointAdjoint()))(A)
    jax.tree.map(close, jax.value_and_grad(partial(solve, name, RevolveAdjoint()))(A), wanted)


def test_every_way_to_the_gradient_at_a_converged_solution() -> None:
    """Forward mode, the implicit function theorem, and Optimistix's loop as `checkpoint_loops`
    enters it, which then has forward mode, too."""
    theirs = partial(solve, "Newton", optimistix.RecursiveCheckpointAdjoint())
    wanted = jax.grad(partial(solve, "Newton", RevolveAdjoint()))(A)
    close(jax.jvp(partial(solve, "Newton", RevolveAdjoint()), (A,), (A,))[1], wanted @ A)
    close(jax.jvp(checkpoint_loops(theirs), (A,), (A,))[1], wanted @ A)
    close(jax.grad(checkpoint_loops(theirs))(A), wanted)
    close(jax.grad(partial(solve, "Newton", optimistix.ImplicitAdjoint()))(A), wanted)


def test_second_derivatives_and_options() -> None:
    fun = partial(solve, "Newton", RevolveAdjoint(checkpoints=3, block_size=2))
    theirs = partial(solve, "Newton", optimistix.RecursiveCheckpointAdjoint())
    differences = [jax.grad(theirs)(A + e) - jax.grad(theirs)(A - e) for e in 1e-4 * np.eye(2)]
    close(jax.hessian(fun)(A), np.stack(differences) / 2e-4, rtol=1e-5)
    plans = [report.plan for report in explain(fun)(A).loops]
    assert [(p.checkpoints, p.block_size) for p in plans if p.length == 64] == [(3, 2)]


def test_truncated_iterations_and_no_bound() -> None:
    """Optimistix reports the bound, and the derivative is that of the iterations so far."""
    problem = partial(solve, "Newton", throw=False, max_steps=2)
    ours, theirs = RevolveAdjoint(), optimistix.RecursiveCheckpointAdjoint()
    gradient = jax.grad(problem, argnums=1)(ours, A)
    close(gradient, jax.grad(problem, argnums=1)(theirs, A))
    assert (
        np.abs(gradient - jax.grad(problem, argnums=1)(optimistix.ImplicitAdjoint(), A)).max()
        > 1e-3
    )
    with pytest.raises(Exception, match="maximum number of"):
        solve("Newton", ours, A, max_steps=2)
    unbounded = partial(solve, "Newton", max_steps=None)
    close(
        jax.grad(unbounded, argnums=1)(RevolveAdjoint(checkpoints=4), A),
        jax.grad(partial(solve, "Newton", theirs))(A),
    )


def test_the_adjoint_of_the_other_library_is_refused() -> None:
    with pytest.raises(TypeError, match=r"integrations\.optimistix\.RevolveAdjoint\(\)"):
        solve("Newton", ForDiffrax(), A)
    term = diffrax.ODETerm(lambda t, y, args: -y)
    adjoint: Any = RevolveAdjoint()
    with pytest.raises(TypeError, match=r"integrations\.diffrax\.RevolveAdjoint\(\)"):
        diffrax.diffeqsolve(term, diffrax.Euler(), 0.0, 1.0, 0.1, jnp.ones(2), adjoint=adjoint)
    with pytest.raises(ValueError, match="checkpoints"):
        RevolveAdjoint(checkpoints=0)
