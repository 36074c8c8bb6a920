"""What the adjoints for different libraries have in common."""

from dataclasses import fields
from typing import Any, NoReturn

import equinox as eqx

from jax_revolve.loops.options import LoopOptions
from jax_revolve.progress.meters import ProgressMeter
from jax_revolve.schedule.arguments import Memory
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.storage import Storage


class Options(eqx.Module):
    """The options of `bounded_while_loop` as the fields of an adjoint."""

    checkpoints: Any = None
    memory: Memory = None
    block_size: int | None = None
    storage: Storage | None = None
    plan: Plan | None = None
    progress: bool | ProgressMeter = False

    def __check_init__(self) -> None:
        LoopOptions(**self._given)

    @property
    def _given(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def refuse(own: str, other: str) -> NoReturn:
    """Refuse an adjoint for one library that was passed to another."""
    raise TypeError(
        f"adjoint is jax_revolve.integrations.{own}.RevolveAdjoint, but {other.capitalize()} runs "
        f"the solver. Pass jax_revolve.integrations.{other}.RevolveAdjoint()."
    )
