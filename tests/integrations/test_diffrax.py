"""`RevolveAdjoint` against Diffrax's own `DirectAdjoint`, which differentiates every operation."""

import re
from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest
from diffrax import SaveAt, SubSaveAt

from jax_revolve.integrations.diffrax import RevolveAdjoint

pytestmark = pytest.mark.usefixtures("compile_quickly")

TIMES: Any = np.array([0.1, 0.25, 0.5])
CONTROLLERS = {
    "fixed": diffrax.ConstantStepSize(),
    "adaptive": diffrax.PIDController(rtol=1e-2, atol=1e-3),
}
VERY_CHORD = diffrax.VeryChord(rtol=1e-4, atol=1e-4, norm=optimistix.max_norm)
SOLVERS: dict[str, Any] = {
    "Euler": diffrax.Euler(),
    "Tsit5": diffrax.Tsit5(),
    "Kvaerno3": diffrax.Kvaerno3(root_finder=VERY_CHORD),
    "Heun": diffrax.Heun(),
    "Heun, SDE": diffrax.Heun(),
    "SRA1, SDE": diffrax.SRA1(),
}
SAVES: dict[str, Any] = {
    "t1": SaveAt(t1=True),
    "ts": SaveAt(ts=TIMES),
    "steps": SaveAt(steps=True, t0=True),
    "dense": SaveAt(dense=True),
    "subs": SaveAt(
        subs=[SubSaveAt(t0=True, t1=True), SubSaveAt(ts=TIMES, fn=lambda t, y, args: t * y**2)]
    ),
}


def drift(t: Any, y: Any, rate: Any) -> Any:
    return rate * jnp.stack([y[1], -y[0]]) - 0.1 * y**3 + 0.1 * t


def solve(adjoint: Any, solver: str, x: Any, **arguments: Any) -> Any:
    """`x` are a factor of the initial value, and the rate."""
    terms: Any = diffrax.ODETerm(drift)
    if solver.endswith("SDE"):
        area, key = diffrax.SpaceTimeLevyArea, jax.random.key(0)
        path = diffrax.VirtualBrownianTree(0.0, 0.5, 1e-2, (), key, levy_area=area)
        noise = diffrax.ControlTerm(lambda t, y, rate: 0.1 * rate * jnp.ones(2), path)
        terms = diffrax.MultiTerm(terms, noise)
    given: Any = (SOLVERS[solver], 0.0, 0.5, 0.1, x[0] * jnp.array([1.0, 0.5]), x[1])
    arguments = {"adjoint": adjoint, "max_steps": 16, **arguments}
    return diffrax.diffeqsolve(terms, *given, **arguments)


def loss(adjoint: Any, solver: str, save: str, controller: str, x: Any) -> Any:
    how = {"saveat": SAVES[save], "stepsize_controller": CONTROLLERS[controller]}
    solution = solve(adjoint, solver, x, **how)
    if save == "dense":
        return jnp.sum(jax.vmap(solution.evaluate)(TIMES) ** 2)
    return sum(jnp.sum(jnp.where(jnp.isfinite(y), y, 0) ** 2) for y in jax.tree.leaves(solution.ys))


X = jnp.array([1.0, 1.5])
close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-9)


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("solver", "save", "controller"),
    [
        ("Euler", "t1", "fixed"),
        pytest.param("Tsit5", "ts", "adaptive", marks=slow),
        pytest.param("Heun", "subs", "fixed", marks=slow),
        pytest.param("Kvaerno3", "dense", "adaptive", marks=slow),
        pytest.param("SRA1, SDE", "steps", "fixed", marks=slow),
    ],
)
def test_first_order(solver: str, save: str, controller: str) -> None:
    ours = partial(loss, RevolveAdjoint(), solver, save, controller)
    theirs = partial(loss, diffrax.ForwardMode(), solver, save, controller)
    (value, _), gradient = jax.jit(jax.vmap(lambda t: jax.jvp(theirs, (X,), (t,))))(jnp.eye(2))
    in_reverse, forwards = jax.jit(
        lambda x: (jax.value_and_grad(ours)(x), jax.jvp(ours, (x,), (jnp.ones(2),)))
    )(X)
    jax.tree.map(close, in_reverse, (value, gradient))
    jax.tree.map(close, forwards, (value, jnp.sum(gradient)))


@slow
@pytest.mark.parametrize(
    ("solver", "second"),
    [
        ("Euler", jax.jacfwd),
        # Steps with derivative rules of their own: implicit stages, and a path that refuses to be
        # differentiated by the time.
        ("Kvaerno3", jax.jacrev),
        ("Heun, SDE", jax.jacfwd),
    ],
)
def test_second_order(solver: str, second: Any) -> None:
    ours = partial(loss, RevolveAdjoint(), solver, "ts", "fixed")
    theirs = partial(loss, diffrax.ForwardMode(), solver, "ts", "fixed")
    close(jax.jit(second(jax.grad(ours)))(X), jax.jit(jax.jacfwd(jax.jacfwd(theirs)))(X))


def test_a_batch_of_solves_of_different_lengths() -> None:
    def run(adjoint: Any, x: Any) -> Any:
        adaptive = {"stepsize_controller": CONTROLLERS["adaptive"], "saveat": SAVES["ts"]}
        solution = solve(adjoint, "Heun", x, max_steps=256, **adaptive)
        value = jnp.sum(solution.ys**2)
        return value, (value, solution.stats["num_steps"])

    xs = jnp.array([[1.0, 1.0], [9.0, 20.0], [0.0, 1.0]])
    ours = jax.grad(partial(run, RevolveAdjoint(checkpoints=3)), has_aux=True)
    theirs = jax.jit(jax.jacfwd(partial(run, diffrax.ForwardMode()), has_aux=True))
    batch = jax.jit(jax.vmap(ours))(xs)
    assert len({*batch[1][1].tolist()}) > 1
    jax.tree.map(close, batch, jax.tree.map(lambda *x: jnp.stack(x), *map(theirs, xs)))


def final(adjoint: Any, x: Any, **arguments: Any) -> Any:
    solution = solve(adjoint, "Euler", x, **arguments)
    return solution.ts[-1] + jnp.sum(solution.ys[-1] ** 2)


def test_an_event_sees_the_solver_of_the_user() -> None:
    """As with Diffrax's own adjoints: a condition may depend on its type and its tolerances."""
    seen: list[Any] = []

    def condition(t: Any, y: Any, args: Any, *, solver: Any, **_: Any) -> Any:
        seen.append(solver)
        return y[0] < 0.8

    event = diffrax.Event({"first": condition, "never": lambda t, *_, **__: t > 9})
    found = []
    for adjoint in (RevolveAdjoint(), diffrax.ForwardMode()):
        solution = solve(adjoint, "Tsit5", X, event=event)
        found.append((solution.ts, solution.ys, solution.event_mask))
    assert {type(solver) for solver in seen} == {diffrax.Tsit5}
    jax.tree.map(close, *found)


@slow
def test_events() -> None:
    event = diffrax.Event(lambda t, y, args, **_: y[0] - 0.8, optimistix.Newton(1e-8, 1e-8))
    run = partial(final, event=event)
    expected = jax.jit(jax.jacfwd(partial(run, diffrax.ForwardMode())))(X)
    close(jax.jit(jax.grad(partial(run, RevolveAdjoint())))(X), expected)


def test_without_a_bound() -> None:
    expected = jax.jacfwd(partial(final, diffrax.ForwardMode()))(X)
    without = partial(final, max_steps=None)
    close(jax.grad(partial(without, RevolveAdjoint(checkpoints=3)))(X), expected)
    close(jax.jacfwd(partial(without, RevolveAdjoint()))(X), expected)
    with pytest.raises(ValueError, match="max_steps and checkpoints must not both be None"):
        jax.grad(partial(without, RevolveAdjoint()))(X)
    solution = solve(RevolveAdjoint(), "Euler", X, max_steps=2, throw=False)
    assert solution.result == diffrax.RESULTS.max_steps_reached


@slow
def test_unsafe_path_has_no_reverse_mode() -> None:
    path = diffrax.UnsafeBrownianPath((), jax.random.key(0))
    noise = diffrax.ControlTerm(lambda t, y, args: args, path)
    term = diffrax.MultiTerm(diffrax.ODETerm(lambda t, y, args: -y), noise)

    def run(adjoint: Any, x: Any) -> Any:
        given: Any = (term, diffrax.Euler(), 0.0, 0.5, 0.1, x[0], x[1])
        return jnp.sum(diffrax.diffeqsolve(*given, adjoint=adjoint, max_steps=8).ys)  # pyright: ignore

    ours = partial(run, RevolveAdjoint())
    close(jax.jacfwd(ours)(X), jax.jacfwd(partial(run, diffrax.ForwardMode()))(X))
    with pytest.raises(Exception, match="UnsafeBrownianPath"):
        jax.grad(ours)(X)


def test_the_cotangent_of_a_stage_is_computed_once() -> None:
    """It is added to those of all slopes before, each multiplied by a number. XLA's CPU backend put
    the whole vector field's transpose into the kernel that does so, once for each slope."""

    def run(y0: Any) -> Any:
        term = diffrax.ODETerm(lambda t, y, args: jnp.roll(y, 1) - 2 * y + jnp.roll(y, -1) - y**3)
        solver, adjoint = diffrax.Tsit5(), RevolveAdjoint(checkpoints=3)
        solution: Any = diffrax.diffeqsolve(term, solver, 0.0, 1.0, 0.1, y0, adjoint=adjoint)
        return jnp.sum(solution.ys**2)

    text = jax.jit(jax.grad(run)).lower(jnp.ones(50)).compile().as_text()
    kernels = re.findall(r"^%?fused_computation.*?^}", text or "", re.MULTILINE | re.DOTALL)
    adding = [k for k in kernels if re.search(r"ROOT %\S+ = f64\[7,50\]\S* add\(", k)]
    assert adding
    assert not any(" negate(" in k or " pad(" in k for k in adding)


def test_other_versions_of_diffrax_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_loop(*, solver: Any, something_new: Any) -> None: ...

    monkeypatch.setattr(diffrax.AbstractAdjoint, "_loop", property(lambda self: other_loop))
    monkeypatch.setattr(diffrax, "__version__", "9.9.9")
    with pytest.raises(NotImplementedError, match=r"Diffrax 9\.9\.9.*0\.6\.2 to 0\.7\.2"):
        RevolveAdjoint()


@pytest.mark.parametrize("arguments", [{"memory": "much"}, {"checkpoints": 3, "memory": "1MB"}])
def test_bad_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"checkpoints|memory"):
        RevolveAdjoint(**arguments)
