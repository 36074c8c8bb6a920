"""Long loops in JAX, differentiable within a memory budget.

`jax_revolve.typing` has the types of arguments and results. The names below are imported when they
are first used: making a plan needs no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_revolve.host.scan import host_scan as host_scan
    from jax_revolve.layers.chain import checkpointed_chain as checkpointed_chain
    from jax_revolve.layers.checkpointed import Checkpointed as Checkpointed
    from jax_revolve.layers.checkpointed import checkpoint_layers as checkpoint_layers
    from jax_revolve.loops.fori_loop import checkpointed_fori_loop as checkpointed_fori_loop
    from jax_revolve.loops.inverse import inverse_drift as inverse_drift
    from jax_revolve.loops.scan import checkpointed_scan as checkpointed_scan
    from jax_revolve.loops.while_loop import bounded_while_loop as bounded_while_loop
    from jax_revolve.programs.explain import explain as explain
    from jax_revolve.programs.fit import fit as fit
    from jax_revolve.programs.rewrite import checkpoint_loops as checkpoint_loops
    from jax_revolve.schedule.arguments import TooLittleMemory as TooLittleMemory
    from jax_revolve.schedule.plan import Plan as Plan
    from jax_revolve.schedule.planning import plan as plan
    from jax_revolve.schedule.storage import Disk as Disk
    from jax_revolve.schedule.storage import HostMemory as HostMemory

__version__ = "0.4.0"

_MODULES = {
    "host_scan": "host.scan",
    "checkpointed_chain": "layers.chain",
    "Checkpointed": "layers.checkpointed",
    "checkpoint_layers": "layers.checkpointed",
    "checkpointed_fori_loop": "loops.fori_loop",
    "inverse_drift": "loops.inverse",
    "checkpointed_scan": "loops.scan",
    "bounded_while_loop": "loops.while_loop",
    "explain": "programs.explain",
    "fit": "programs.fit",
    "checkpoint_loops": "programs.rewrite",
    "TooLittleMemory": "schedule.arguments",
    "Plan": "schedule.plan",
    "plan": "schedule.planning",
    "Disk": "schedule.storage",
    "HostMemory": "schedule.storage",
}

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_MODULES)
