"""What a file of results says about the machine, the sources and the circumstances."""

import ast
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tokenize
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).parents[2]
VARYING = ("date", "command", "commit")
"""Entries that differ between two runs on the same machine with the same sources."""
PACKAGES = ("jax", "jaxlib", "equinox", "diffrax")


def describe_machine() -> dict[str, Any]:
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "device": jax.devices()[0].device_kind,
        "backend": jax.default_backend(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in PACKAGES},
        "date": today(),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        **sources(),
    }


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def sources() -> dict[str, str | None]:
    """The commit, `None` where it is unknown, as in a copy without Git; and a hash of what runs of
    `jax_revolve/`."""
    commit = None
    if shutil.which("git") is not None:
        command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True)
        commit = done.stdout.strip() if done.returncode == 0 else None
    digest = sha256()
    for path in sorted((ROOT / "jax_revolve").rglob("*")):
        if path.suffix in (".py", ".json"):
            text = path.read_text()
            text = code(text) if path.suffix == ".py" else text
            digest.update(f"{path.relative_to(ROOT)}\n{text}".encode())
    return {"commit": commit, "tree": digest.hexdigest()[:40]}


def code(source: str) -> str:
    """A module without the lines that are empty, or of comments or docstrings alone: prose may
    change without another measurement. What shares a line with code, or is inside a string that the
    code uses, is kept. Lines, because Python's versions print a syntax tree differently."""
    lines = source.split("\n")
    prose = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        if token.type in (tokenize.COMMENT, tokenize.NL) and not lines[row - 1][:column].strip():
            prose.add(row)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str()), lineno=first, end_lineno=int(last)):
                whole = "\n".join(lines[first - 1 : last]).strip()
                if whole == ast.get_source_segment(source, node):
                    prose.update(range(first, last + 1))
    kept = (line for i, line in enumerate(lines, 1) if i not in prose)
    return "\n".join(kept).rstrip("\n")


def load() -> float:
    """The processes that wanted to run in the last minute, on average; 0 where it is unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def device_slug() -> str:
    """The kind of device as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", jax.devices()[0].device_kind.lower()).strip("-")


def installed(package: str) -> str | None:
    """The version of a package, if it is installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """The model of the CPU."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", info.read_text() if info.exists() else "", re.M)
    return found[1] if found else platform.processor()
