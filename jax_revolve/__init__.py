"""Long loops in JAX, differentiable within a memory budget.

The names below are imported when they are first used: making a plan needs no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_revolve.host.scan import host_scan as host_scan
    from jax_revolve.layers.chain import checkpointed_chain as checkpointed_chain
    from jax_revolve.layers.checkpointed import Checkpointed as Checkpointed
    from jax_revolve.layers.checkpointed import checkpoint_layers as checkpoint_layers
    from jax_revolve.loops.fori_loop import checkpointed_fori_loop as checkpointed_fori_loop
    from jax_revolve.loops.inverse import InverseDrift as InverseDrift
    from jax_revolve.loops.inverse import inverse_drift as inverse_drift
    from jax_revolve.loops.scan import checkpointed_scan as checkpointed_scan
    from jax_revolve.loops.while_loop import bounded_while_loop as bounded_while_loop
    from jax_revolve.programs.choice import Where as Where
    from jax_revolve.programs.explain import Explanation as Explanation
    from jax_revolve.programs.explain import explain as explain
    from jax_revolve.programs.find import FoundLoop as FoundLoop
    from jax_revolve.programs.fit import Fitted as Fitted
    from jax_revolve.programs.fit import fit as fit
    from jax_revolve.programs.rewrite import checkpoint_loops as checkpoint_loops
    from jax_revolve.progress.meters import ProgressMeter as ProgressMeter
    from jax_revolve.progress.meters import TextMeter as TextMeter
    from jax_revolve.progress.meters import TqdmMeter as TqdmMeter
    from jax_revolve.schedule import actions as actions
    from jax_revolve.schedule.arguments import Memory as Memory
    from jax_revolve.schedule.cost import Sizes as Sizes
    from jax_revolve.schedule.plan import Plan as Plan
    from jax_revolve.schedule.planning import Checkpoints as Checkpoints
    from jax_revolve.schedule.planning import longest_plan as longest_plan
    from jax_revolve.schedule.planning import plan as plan
    from jax_revolve.schedule.report import Measurement as Measurement
    from jax_revolve.schedule.report import Report as Report
    from jax_revolve.schedule.storage import Disk as Disk
    from jax_revolve.schedule.storage import HostMemory as HostMemory
    from jax_revolve.schedule.storage import Storage as Storage
    from jax_revolve.schedule.two_level import AnyPlan as AnyPlan
    from jax_revolve.schedule.two_level import TwoLevelPlan as TwoLevelPlan

_MODULES = {
    "host_scan": "host.scan",
    "checkpointed_chain": "layers.chain",
    "Checkpointed": "layers.checkpointed",
    "checkpoint_layers": "layers.checkpointed",
    "checkpointed_fori_loop": "loops.fori_loop",
    "InverseDrift": "loops.inverse",
    "inverse_drift": "loops.inverse",
    "checkpointed_scan": "loops.scan",
    "bounded_while_loop": "loops.while_loop",
    "Where": "programs.choice",
    "Explanation": "programs.explain",
    "explain": "programs.explain",
    "FoundLoop": "programs.find",
    "Fitted": "programs.fit",
    "fit": "programs.fit",
    "checkpoint_loops": "programs.rewrite",
    "ProgressMeter": "progress.meters",
    "TextMeter": "progress.meters",
    "TqdmMeter": "progress.meters",
    "actions": "schedule",
    "Memory": "schedule.arguments",
    "Sizes": "schedule.cost",
    "Plan": "schedule.plan",
    "Checkpoints": "schedule.planning",
    "longest_plan": "schedule.planning",
    "plan": "schedule.planning",
    "Measurement": "schedule.report",
    "Report": "schedule.report",
    "Disk": "schedule.storage",
    "HostMemory": "schedule.storage",
    "Storage": "schedule.storage",
    "AnyPlan": "schedule.two_level",
    "TwoLevelPlan": "schedule.two_level",
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
