"""Checking arguments: errors name the argument, its value and what is allowed."""

from numbers import Integral


def check_integer(name: str, value: object, *, least: int, allowed: str | None = None) -> int:
    allowed = allowed or f"an int >= {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(
            f"{name} must be {allowed}, but is {value!r} of type {type(value).__name__}."
        )
    if value < least:
        raise ValueError(f"{name} must be {allowed}, but is {int(value)}.")
    return int(value)
