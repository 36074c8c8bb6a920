"""The example of `host_scan`, shorter."""

import importlib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax


@pytest.fixture
def bay(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    return importlib.import_module("bay")


def test_gradient_with_wind_from_files(bay: ModuleType, tmp_path: Path) -> None:
    steps = 150
    bay.write_wind(tmp_path, steps)
    assert len(list(tmp_path.iterdir())) == 2
    read, depth = bay.reader(tmp_path), bay.sea_floor()
    wind = np.stack([read(i) for i in range(steps)])

    def gradient(wind: Any, **options: Any) -> Any:
        level = partial(bay.level_at_the_quay, steps=steps, **options)
        return jax.value_and_grad(level, has_aux=True)(depth, wind)

    ours, theirs = gradient(read, checkpoints=5), gradient(wind, scan=lax.scan)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.max(np.abs(b)))
