"""Checks of arguments, and amounts of memory such as "2GiB".

An error names the argument, its value and what is allowed.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import wraps
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeVar, cast

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

Memory: TypeAlias = int | str | None
"""Bytes, as an int or a string such as `"512MB"` or `"2GiB"`."""

_ALLOWED = 'an int >= 0 of bytes or a string such as "512MB" or "2GiB"'
_PREFIXES = " kmgt"


class TooLittleMemory(ValueError):
    """The memory budget is too small. `least` is the smallest possible one, in bytes."""

    def __init__(self, least: int, message: str) -> None:
        super().__init__(message)
        self.least = least


_TRANSFERS = (
    "the number of advances then depends on transfers, too. Pass checkpoints, the number of "
    "carries to store on the device."
)
_CONFLICTS = (
    ("checkpoints", "plan", "the plan determines it."),
    ("block_size", "plan", "the plan determines it."),
    ("memory", "plan", "the plan determines it."),
    ("storage", "plan", "the plan determines it."),
    ("checkpoints", "memory", "memory={memory!r} determines their number."),
    ("repetitions", "storage", _TRANSFERS),
    ("levels", "storage", _TRANSFERS),
)
"""Pairs of arguments of which the first must be `None` where the second is given, and why."""


def refuse_conflicts(given: Mapping[str, Any]) -> None:
    for name, other, why in _CONFLICTS:
        if given.get(name) is not None and given.get(other) is not None:
            other = "a plan" if other == "plan" else other
            raise ValueError(
                f"{name} must be None where {other} is given, but is {given[name]!r}: "
                f"{why.format(**given)}"
            )


def mistyped(name: str, value: object, allowed: str) -> TypeError:
    kind = type(value).__name__
    return TypeError(f"{name} must be {allowed}, but is {value!r} of type {kind}.")


def check_integer(name: str, value: object, *, least: int, allowed: str | None = None) -> int:
    allowed = allowed or f"an int >= {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise mistyped(name, value, allowed)
    if value < least:
        raise ValueError(f"{name} must be {allowed}, but is {int(value)}.")
    return int(value)


def check_number(name: str, value: object, *, least: float, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise mistyped(name, value, allowed)
    if not isfinite(value) or value < least:
        raise ValueError(f"{name} must be {allowed}, but is {value!r}.")
    return float(value)


def check_drift_tol(value: object) -> None:
    if value not in (None, inf):
        allowed = "a number >= 0, math.inf included, or None"
        check_number("drift_tol", value, least=0, allowed=allowed)


def called_as(example: str) -> Callable[[AnyFunction], AnyFunction]:
    """For a function that returns a function: an error that shows the call, where one passes to the
    first what is for the second."""

    def decorate(fun: AnyFunction) -> AnyFunction:
        signature = inspect.signature(fun)

        @wraps(fun)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{fun.__name__}: {error}. It is called as {example}.") from None
            return fun(*args, **kwargs)

        return cast("AnyFunction", called)

    return decorate


def parse_bytes(memory: object, name: str = "memory") -> int:
    """The number of bytes of an int, or of a string such as "512MB" or "2 GiB"."""
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(i?)b)?\s*", memory, re.IGNORECASE)
        if match is None or (match[3] and not match[2]):
            raise ValueError(
                f"{name} must be {_ALLOWED}, but is {memory!r}. Units are B, kB, MB, GB and TB, or "
                "KiB to TiB. jax_revolve.fit finds the budget for a share of a device's memory."
            )
        number, prefix, binary = match.groups()
        power = _PREFIXES.index((prefix or " ").lower())
        return int(Fraction(number) * (1024 if binary else 1000) ** power)
    if isinstance(memory, float) and memory.is_integer():
        raise TypeError(f"{mistyped(name, memory, _ALLOWED)} Pass {int(memory)}.")
    return check_integer(name, memory, least=0, allowed=_ALLOWED)


def readable(size: float) -> str:
    """Bytes with a decimal unit, three digits: "1.23 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def counted(number: int, what: str) -> str:
    """A number of things: "1 step", "2 steps"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
