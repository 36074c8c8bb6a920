"""The processes that run a loop together."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Processes:
    """Those whose devices hold the operands of a loop."""

    def __init__(self, operands: Iterable[Any]) -> None:
        spread = [
            x.sharding.device_set
            for x in operands
            if isinstance(x, jax.Array) and not x.is_fully_addressable
        ]
        devices = set[Any]().union(*spread)
        self._devices = sorted(devices, key=lambda device: (device.process_index, device.id))
        ranks = [device.process_index for device in self._devices]
        self._first = [ranks.index(rank) for rank in sorted({*ranks})]
        self.count = max(len(self._first), 1)
        self.index = sorted({*ranks}).index(jax.process_index()) if ranks else 0

    def gather(self, *numbers: int) -> np.ndarray:
        """The numbers of each process, in rows, once all processes have called this."""
        row = np.array([numbers], np.int32)
        if self.count == 1:
            return row
        mesh = Mesh(np.array(self._devices), ("device",))
        each, same = (NamedSharding(mesh, PartitionSpec(axis)) for axis in ("device", None))
        shape = (len(self._devices), len(numbers))
        rows = jax.make_array_from_callback(shape, each, lambda _: row)
        return np.asarray(jax.jit(_same, out_shardings=same)(rows))[self._first]


def _same(rows: Any) -> Any:
    return rows
