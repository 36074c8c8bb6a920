"""Long loops in JAX, differentiable within a memory budget.

- `checkpointed_scan`, `checkpointed_fori_loop`: `jax.lax.scan` and `fori_loop` with `memory=`.
- `bounded_while_loop`: a while loop with forward and reverse mode, to any order.
- `checkpoint_loops(fun, memory=...)`: every loop that an existing function runs.
- `fit(make, "2GB")(x)`: the largest budget with which a whole program fits.
- `explain(fun)(x)`: the plan of each loop; `plan(n, checkpoints=...)`: one without a loop.
- `certify(fun, gradient)(x)`: how far any gradient is from the exact one.
- `checkpointed_chain`, `checkpoint_layers`, `Checkpointed`: functions and layers in sequence.
- `host_scan`: a loop that Python drives, which can be resumed.
- `HostMemory`, `Disk`: where checkpoints go for which the device has no room.
- `Inverse`: steps that are walked back; `Compressed`: checkpoints in fewer bits; `drift`: of both.

`jax_revolve.typing` has the types of arguments and results; `jax_revolve.integrations.diffrax` and
`.equinox` are for these libraries. Names are imported when they are first used: making a plan needs
no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_revolve.host.scan import host_scan as host_scan
    from jax_revolve.layers.chain import checkpointed_chain as checkpointed_chain
    from jax_revolve.layers.checkpointed import Checkpointed as Checkpointed
    from jax_revolve.layers.checkpointed import checkpoint_layers as checkpoint_layers
    from jax_revolve.loops.fori_loop import checkpointed_fori_loop as checkpointed_fori_loop
    from jax_revolve.loops.inverse import Inverse as Inverse
    from jax_revolve.loops.inverse import drift as drift
    from jax_revolve.loops.scan import checkpointed_scan as checkpointed_scan
    from jax_revolve.loops.while_loop import bounded_while_loop as bounded_while_loop
    from jax_revolve.programs.certify import certify as certify
    from jax_revolve.programs.explain import explain as explain
    from jax_revolve.programs.fit import fit as fit
    from jax_revolve.programs.rewrite import checkpoint_loops as checkpoint_loops
    from jax_revolve.schedule.arguments import TooLittleMemory as TooLittleMemory
    from jax_revolve.schedule.plan import Plan as Plan
    from jax_revolve.schedule.planning import plan as plan
    from jax_revolve.schedule.storage import Compressed as Compressed
    from jax_revolve.schedule.storage import Disk as Disk
    from jax_revolve.schedule.storage import HostMemory as HostMemory

__version__ = "0.4.0"

_MODULES = {
    "host_scan": "host.scan",
    "checkpointed_chain": "layers.chain",
    "Checkpointed": "layers.checkpointed",
    "checkpoint_layers": "layers.checkpointed",
    "checkpointed_fori_loop": "loops.fori_loop",
    "Inverse": "loops.inverse",
    "drift": "loops.inverse",
    "checkpointed_scan": "loops.scan",
    "bounded_while_loop": "loops.while_loop",
    "certify": "programs.certify",
    "explain": "programs.explain",
    "fit": "programs.fit",
    "checkpoint_loops": "programs.rewrite",
    "TooLittleMemory": "schedule.arguments",
    "Plan": "schedule.plan",
    "plan": "schedule.planning",
    "Compressed": "schedule.storage",
    "Disk": "schedule.storage",
    "HostMemory": "schedule.storage",
}

_ELSEWHERE = {
    "inverse_drift": "it is drift",
    **dict.fromkeys(("checkpointed_while_loop", "while_loop"), "it is bounded_while_loop"),
    "RevolveAdjoint": "it is in jax_revolve.integrations.diffrax",
}

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        where = _ELSEWHERE.get(name)
        if where is None and name[0] != "_" and name in vars(import_module(f"{__name__}.typing")):
            where = f"it is in {__name__}.typing"
        hint = f": {where}" if where else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_MODULES)
