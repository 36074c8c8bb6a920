"""Kernels and waits while a program runs, counted from the file that `jax.profiler` writes."""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

Event = dict[str, Any]


def counts_while(run: Callable[[], Any]) -> dict[str, int | None]:
    """What is counted while the function runs once."""
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (file,) = Path(folder).rglob("*.trace.json.gz")
        return counts(json.loads(gzip.decompress(file.read_bytes()))["traceEvents"])


def counts(events: Iterable[Event]) -> dict[str, int | None]:
    """The kernels that a device ran, and how often the host waited for it or read from it. `None`
    where the trace has no events of a device, as on a CPU."""
    events = [event for event in events if event]
    processes = _names(events, "process_name")
    threads = _names(events, "thread_name")
    devices = {key for (key, _), name in processes.items() if "/device:" in name}
    if not devices:
        return {"kernels": None, "waits": None}
    kernels = waits = 0
    for event in (event for event in events if event.get("ph") == "X"):
        thread = threads.get((event["pid"], event.get("tid")), "")
        is_copy = event["name"].lower().startswith("memcpy")
        if event["pid"] not in devices:
            waits += event["name"].endswith("Synchronize")
        elif thread.startswith(("Stream", "XLA Ops")):
            kernels += not is_copy
            waits += is_copy and "D2H" in event["name"]
    return {"kernels": kernels, "waits": waits}


def _names(events: Iterable[Event], kind: str) -> dict[tuple[int, int | None], str]:
    return {
        (event["pid"], event.get("tid") if kind == "thread_name" else None): event["args"]["name"]
        for event in events
        if event.get("ph") == "M" and event.get("name") == kind
    }
