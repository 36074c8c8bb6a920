"""Runs that are killed at an operation on their files; see `storage/test_files.py`.

Takes a subject, a directory that does not exist, and a number of places. Prints JSON: `whole`, what
an undisturbed run gives, and `killed`, the same of runs that follow two that were killed: the
result, the most bytes that the directory had in all three, and the files that are left in the end.
Each run is a process of its own. To fork one takes less time than to import JAX in it.
"""

import json
import logging
import mmap
import os
import shutil
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.file_systems import before_each_operation, size_of

from jax_revolve.storage import files

SIZE = 200
"""The numbers in a carry."""


def of_files(directory: Path) -> list[float]:
    """The life of three checkpoints, without JAX."""
    like = [((SIZE,), np.dtype(np.float32))]
    carries = [np.full(SIZE, i, np.float32) for i in range(3)]
    tickets = [files.write_file(directory, [carry]) for carry in carries]
    found = [files.read_file(directory, t, like, is_last=True)[0] for t in reversed(tickets)]
    return [float(carry[0]) for carry in found]


def of_jax(directory: Path, name: str) -> list[float]:
    import jax
    import jax.numpy as jnp

    from jax_revolve import Disk, checkpointed_scan, host_scan

    storage = Disk(directory, transfer=0.2, checkpoints=4)
    options: dict[str, Any] = {"checkpoints": 2, "storage": storage}
    if name == "saved":
        options |= {"directory": directory, "save_every": 0}
    scan: Any = checkpointed_scan if name == "disk" else host_scan

    def loss(start: Any, factor: Any) -> Any:
        step = lambda u, _: (jnp.sin(factor * u), jnp.sum(u))  # noqa: E731
        final, ys = scan(step, start, None, 12, **options)
        return jnp.sum(final**2) + jnp.sum(ys)

    jax.config.update("jax_disable_most_optimizations", True)
    # What calls Python, such as a loop with files, is not in the cache.
    jax.config.update("jax_compilation_cache_dir", str(directory.with_suffix(".cache")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    gradient = jax.grad(loss, (0, 1))
    gradient = jax.jit(gradient) if name == "disk" else gradient
    found = gradient(np.linspace(0.1, 1, SIZE, dtype=np.float32), 0.9)
    return [float(x) for leaf in found for x in np.ravel(leaf)]


def run_process(subject: str, directory: Path, at: int | None) -> tuple[Any, int, int]:
    """The result, the most bytes and the number of operations of a run in a process of its own,
    which is killed before operation `at`."""
    shared, result = mmap.mmap(-1, 16), directory.with_suffix(".json")
    result.unlink(missing_ok=True)
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        most, count = struct.unpack("QQ", shared[:])
        assert status in ((0,) if at is None else (0, signal.SIGKILL))
        return (json.loads(result.read_text()) if not status else None), most, count

    def act(_: str) -> None:
        most, count = struct.unpack("QQ", shared[:])
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        shared[:] = struct.pack("QQ", max(most, size_of(directory)), count + 1)

    with before_each_operation(directory, act):
        found = of_files(directory) if subject == "files" else of_jax(directory, subject)
        files._remove_own()
        result.write_text(json.dumps(found))
    os._exit(0)


def run_all(run: Callable[[int | None], tuple[Any, int, int]], directory: Path, *at: Any) -> Any:
    runs = [run(each) for each in (*at, None)]
    result, _, count = runs[-1]
    most = max(most for _, most, _ in runs)
    left = sorted(str(p.relative_to(directory)) for p in directory.rglob("*"))
    shutil.rmtree(directory)
    return {"result": result, "most": most, "count": count, "left": left}


def main(subject: str, directory: Path, places: int) -> None:
    logging.disable()
    run = lambda at: run_process(subject, directory, at)  # noqa: E731
    if subject != "files":
        import jax_revolve.host.scan  # noqa: F401  # before the first fork
    whole = run_all(run, directory)
    every = range(0, whole["count"], max(whole["count"] // places, 1))
    killed = [run_all(run, directory, at, (whole["count"] - at) // 2) for at in every]
    print(json.dumps({"whole": whole, "killed": killed}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
