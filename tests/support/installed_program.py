"""What an installation is good for, without any extra and out of reach of the checkout: `.ci/run`
runs it with the wheel, on every Python, warnings being errors."""

import pkgutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_revolve
from jax_revolve import bounded_while_loop, checkpointed_scan

OF_EXTRAS = {f"jax_revolve.integrations.{name}" for name in ("diffrax", "optimistix", "_stages")}


def import_everything() -> None:
    assert Path(jax_revolve.__file__).is_relative_to(sys.prefix), jax_revolve.__file__
    names = {m.name for m in pkgutil.walk_packages(jax_revolve.__path__, "jax_revolve.")}
    for name in {*names, "jax_revolve.examples.tsunami"} - OF_EXTRAS:
        import_module(name)


def differentiate() -> None:
    x, xs = jnp.linspace(0.1, 0.9, 5), jnp.linspace(0.5, 1.5, 30)

    def final(x: jax.Array, scan: Callable[..., Any] = jax.lax.scan) -> jax.Array:
        return scan(lambda c, x: (jnp.sin(c) * x, None), x, xs)[0].sum()

    ours = jax.jit(jax.grad(partial(final, scan=partial(checkpointed_scan, checkpoints=4))))(x)
    np.testing.assert_allclose(ours, jax.grad(final)(x), rtol=1e-5)

    def root(a: jax.Array) -> jax.Array:
        def is_far(x: jax.Array) -> jax.Array:
            return abs(x * x - a) > 1e-5 * a

        return bounded_while_loop(is_far, lambda x: 0.5 * (x + a / x), a, max_steps=50)

    a = jnp.array([2.0, 900.0])
    np.testing.assert_allclose(jax.vmap(jax.grad(root))(a), 0.5 / jnp.sqrt(a), rtol=1e-3)


def run_commands() -> None:
    for arguments, code, printed in (
        ("jax_revolve --help", 0, "--refinement"),
        ("jax_revolve", 2, "error: this needs "),
        ("jax_revolve.integrations.diffrax", 1, 'pip install "diffrax>=0.6.2"'),
        ("jax_revolve.integrations.optimistix", 1, "pip install optimistix"),
    ):
        command = [sys.executable, "-I", "-W", "error", "-m", *arguments.split()]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, (arguments, done)
        assert printed in (done.stderr if code else done.stdout), (arguments, done)
        assert code or not done.stderr, (arguments, done)


if __name__ == "__main__":
    import_everything()
    differentiate()
    run_commands()
    print("Python", sys.version.split()[0], "jax", jax.__version__, "works as installed")
