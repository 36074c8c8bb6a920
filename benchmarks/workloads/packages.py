"""Losses that call packages which know nothing of jax_revolve, as their users would.

Each package is imported when its loss is built. The functions are typed loosely: the packages need
not be installed when this file is checked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.runner.programs import sum_of_squares


@dataclass(frozen=True)
class ThirdParty:
    """A loss and where its gradient is taken, which `build` returns; `packages` are names of
    distributions, for `pip`; `max_steps` bounds its while loops."""

    name: str
    size: str
    packages: tuple[str, ...]
    build: Callable[[], tuple[Callable[[Any], Any], Any]]
    max_steps: int | None = None


def _modules(package: str, *names: str) -> list[Any]:
    return [import_module(f"{package}.{name}") for name in names]


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def atmosphere() -> Any:
    """A baroclinic wave on the sphere, by the spectral primitive equations; the loss is that of its
    divergence, as a function of the temperature at the start."""
    coordinates, sigma, harmonics, units, scales, steps, equations, states, xarray = _modules(
        *("dinosaur", "coordinate_systems", "sigma_coordinates", "spherical_harmonic", "units"),
        *("scales", "time_integration", "primitive_equations", "primitive_equations_states"),
        "xarray_utils",
    )
    specs, grid = units.SimUnits.from_si(), harmonics.Grid.T42()
    coords = coordinates.CoordinateSystem(grid, sigma.SigmaCoordinates.equidistant(8))
    initial, features = states.steady_state_jw(coords, specs)
    start = initial() + states.baroclinic_perturbation_jw(coords, specs)
    temperature, orography = features[xarray.REF_TEMP_KEY], np.zeros(grid.modal_shape, np.float32)
    primitive = equations.PrimitiveEquationsSigma(temperature, orography, coords, specs)
    dt = specs.nondimensionalize(20 * scales.units.minute)
    filters = [steps.exponential_step_filter(grid, dt)]
    run = steps.repeated(steps.step_with_filters(steps.imex_rk_sil3(primitive, dt), filters), 72)

    def loss(temperature: Any) -> Any:
        return sum_of_squares(run(start.replace(temperature_variation=temperature)).divergence)

    return loss, jnp.asarray(start.temperature_variation)


def turbulence() -> Any:
    """Decaying turbulence in a periodic box; the loss is the energy at the end, as a function of
    the velocity at the start."""
    cfd = import_module("jax_cfd.base")
    grid = cfd.grids.Grid((128, 128), domain=((0, 2 * np.pi), (0, 2 * np.pi)))
    start = cfd.initial_conditions.filtered_velocity_field(
        jax.random.key(0), grid, maximum_velocity=3.0, peak_wavenumber=4
    )
    dt = cfd.equations.stable_time_step(3.0, 0.5, 1e-3, grid)
    step = cfd.equations.semi_implicit_navier_stokes(1.0, 1e-3, dt, grid)
    run = cfd.funcutils.repeated(step, 300)
    return lambda start: sum_of_squares(run(start)), start


def neuron() -> Any:
    """A cell of five branches with Hodgkin and Huxley's channels; the loss is the distance of its
    voltage from rest, as a function of the conductances."""
    jaxley, channels = import_module("jaxley"), import_module("jaxley.channels")
    branch = jaxley.Branch(jaxley.Compartment(), ncomp=16)
    cell = jaxley.Cell(branch, parents=[-1, 0, 0, 1, 1])
    cell.insert(channels.HH())
    current = jaxley.step_current(i_delay=1.0, i_dur=1.0, i_amp=0.5, delta_t=0.025, t_max=100.0)
    cell.branch(0).loc(0.0).stimulate(current, verbose=False)
    cell.branch(3).loc(1.0).record("v", verbose=False)
    cell.branch("all").comp("all").make_trainable("HH_gNa", verbose=False)
    parameters = cell.get_parameters()
    return lambda p: jnp.mean((jaxley.integrate(cell, p) + 65.0) ** 2), parameters


BALLS = """
<mujoco>
  <option timestep="0.004" iterations="4" ls_iterations="4" solver="Newton"/>
  <worldbody> <geom type="plane" size="5 5 .1"/> {balls} </worldbody>
</mujoco>
"""
BALL = """
<body pos="{x} 0 0.15">
  <joint type="slide" axis="1 0 0"/> <joint type="slide" axis="0 0 1"/>
  <joint type="hinge" axis="0 1 0"/> <geom type="sphere" size=".1" mass="1"/>
</body>
"""


def contacts() -> Any:
    """Balls that fall on a floor and roll; the loss is where they are at the end, as a function of
    their velocities at the start. The contact forces are found by a while loop."""
    mujoco, mjx = import_module("mujoco"), import_module("mujoco.mjx")
    balls = "".join(BALL.format(x=0.5 * i) for i in range(4))
    model = mujoco.MjModel.from_xml_string(BALLS.format(balls=balls))
    on_device = mjx.put_model(model)
    start = mjx.make_data(on_device)

    def loss(velocities: Any) -> Any:
        def step(data: Any, _: None) -> tuple[Any, None]:
            return mjx.step(on_device, data), None

        end, _ = lax.scan(step, start.replace(qvel=velocities), length=500)
        return jnp.sum(end.qpos**2)

    return loss, jnp.asarray(0.3 * _normal(model.nv))


def robots() -> Any:
    """Robots that hop by actions given in advance; the loss is minus how far they get."""
    environment = import_module("brax.envs").get_environment("hopper", backend="spring")
    start = jax.jit(environment.reset)(jax.random.key(0))

    def distance(actions: Any) -> Any:
        def step(state: Any, action: Any) -> Any:
            state = environment.step(state, action)
            return state, state.pipeline_state.x.pos[0, 0]

        return jnp.sum(lax.scan(step, start, actions)[1])

    actions = jnp.asarray(0.1 * _normal(32, 100, environment.action_size))
    return lambda actions: -jnp.mean(jax.vmap(distance)(actions)), actions


def molecules() -> Any:
    """A gas of soft spheres at constant energy; the loss is the energy at the end, as a function of
    their diameters."""
    space, energy, simulate = _modules("jax_md", "space", "energy", "simulate")
    displacement, shift = space.periodic(1.2 * 6)
    lattice = np.stack(np.meshgrid(*[np.arange(6)] * 3), -1).reshape(-1, 3)
    positions = jnp.asarray(1.2 * (lattice + 0.5), jnp.float32)

    def loss(diameter: Any) -> Any:
        potential = energy.soft_sphere_pair(displacement, sigma=diameter)
        init, apply = simulate.nve(potential, shift, dt=2e-3)
        state = init(jax.random.PRNGKey(0), positions, kT=1.0)
        state = lax.fori_loop(0, 300, lambda _, state: apply(state), state)
        return jnp.mean(jnp.square(state.momentum)) + potential(state.position)

    return loss, jnp.float32(1.0)


def hidden_states() -> Any:
    """A hidden Markov model; the loss is minus the log likelihood of what is observed."""
    model = import_module("dynamax.hidden_markov_model").GaussianHMM(64, 4)
    means, covariances = jnp.asarray(_normal(64, 4)), jnp.tile(jnp.eye(4), (64, 1, 1))
    parameters, _ = model.initialize(
        jax.random.key(0), emission_means=means, emission_covariances=covariances
    )
    observed = jnp.asarray(_normal(20_000, 4))
    return lambda p: -model.marginal_log_prob(p, observed), parameters


def sampling(name: str, samples: int, **options: Any) -> Any:
    """Monte Carlo for a logistic regression; the loss is the mean of the weights' squares, as a
    function of the scale of their prior. The trajectories of the no-U-turn sampler are while
    loops."""
    build = getattr(import_module("blackjax"), name)
    features = _normal(500, 20)
    labels = (features.sum(1) > 0).astype(np.float32)
    start, keys = jnp.zeros(20), jax.random.split(jax.random.key(0), samples)

    def loss(scale: Any) -> Any:
        def log_density(weights: Any) -> Any:
            logits = jnp.sum(features * weights, axis=1)
            fit = jnp.sum(labels * logits - jnp.logaddexp(0.0, logits))
            return fit - 0.5 * jnp.sum((weights / scale) ** 2)

        sampler = build(log_density, inverse_mass_matrix=jnp.ones_like(start), **options)

        def step(state: Any, key: Any) -> Any:
            state, _ = sampler.step(key, state)
            return state, state.position

        return jnp.mean(lax.scan(step, sampler.init(start), keys)[1] ** 2)

    return loss, jnp.float32(1.0)


def training() -> Any:
    """Training a network by Adam; the loss is that of the network at the end, as a function of the
    weights at the start and the learning rate."""
    optax = import_module("optax")
    width, xs = 128, jnp.asarray(_normal(500, 64, 10))
    ys = jnp.sin(xs.sum(-1))

    def network_loss(w: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(jnp.tanh(x @ w[0]) @ w[1])
        return jnp.mean((hidden @ w[2] - y) ** 2)

    def loss(start: Any) -> Any:
        rate, weights = start
        optimizer = optax.adam(rate)

        def step(state: Any, batch: Any) -> Any:
            weights, moments = state
            gradient = jax.grad(network_loss)(weights, *batch)
            updates, moments = optimizer.update(gradient, moments, weights)
            return (optax.apply_updates(weights, updates), moments), None

        (weights, _), _ = lax.scan(step, (weights, optimizer.init(weights)), (xs, ys))
        return network_loss(weights, xs[0], ys[0])

    weights = [_normal(10, width) / 3, _normal(width, width) / width**0.5, _normal(width) / width]
    return loss, (jnp.float32(1e-3), [jnp.asarray(w) for w in weights])


HMC = partial(sampling, "hmc", 500, num_integration_steps=20, step_size=0.02)
NUTS = partial(sampling, "nuts", 200, max_num_doublings=6, step_size=0.05)
PROGRAMS = [
    ThirdParty("dinosaur", "72 steps of T42, 8 layers", ("dinosaur",), atmosphere),
    ThirdParty("jax-cfd", "300 steps of 128 x 128", ("jax-cfd",), turbulence),
    ThirdParty("jaxley", "4000 steps of 80 compartments", ("jaxley",), neuron),
    ThirdParty("MuJoCo MJX", "500 steps of 4 balls", ("mujoco", "mujoco-mjx"), contacts, 4),
    ThirdParty("Brax", "100 steps of 32 hoppers", ("brax",), robots),
    ThirdParty("jax-md", "300 steps of 216 particles", ("jax-md",), molecules),
    ThirdParty("dynamax", "20000 steps of 64 states", ("dynamax",), hidden_states),
    ThirdParty("blackjax, HMC", "500 samples of 20 steps", ("blackjax",), HMC),
    ThirdParty("blackjax, NUTS", "200 samples", ("blackjax",), NUTS, 64),
    ThirdParty("optax", "500 steps of Adam, batch 64, width 128", ("optax",), training),
]
