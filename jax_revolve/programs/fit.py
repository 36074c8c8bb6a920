"""`fit`: the largest budget with which a whole program fits.

With a budget of `b` bytes, a program takes about `fixed + b`, and each compilation shows `fixed`.
The search ends where the next larger budget, a twentieth more, would not fit.
"""

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, log, log1p
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_revolve._compat.interpreters import filtered_traceback
from jax_revolve._compat.memories import text_of
from jax_revolve._compat.values import bytes_of
from jax_revolve.jaxprs.walk import inner_jaxprs
from jax_revolve.loops.variables import variables_in
from jax_revolve.progress.meters import Show, share_bar
from jax_revolve.schedule.arguments import (
    Memory,
    TooLittleMemory,
    called_as,
    mistyped,
    parse_bytes,
    readable,
)
from jax_revolve.schedule.report import Printed

MEMINFO = Path("/proc/meminfo")
UNLIMITED = 2**62
MOST_COMPILED, MOST_TRACED = 8, 24  # a program that is equal to an earlier one is not compiled
FINEST, SMALL = 1.05, 1000  # the ratio of budgets that are tried; if small, they are 50 bytes apart


@dataclass(frozen=True, eq=False, repr=False)
class Fitted(Printed):
    """The result of [`jax_revolve.fit`][]: the budget `memory`, the `bytes` that the program takes
    on a device, their `limit`, the program, `compiled`, and the bytes of all `attempts` by budget.
    """

    memory: int
    bytes: int
    limit: int
    compiled: Any
    attempts: dict[int, float]

    def __str__(self) -> str:
        memory = "unlimited" if self.memory == UNLIMITED else self.memory
        share = f"{readable(self.bytes)}, {self.bytes / self.limit:.0%} of {readable(self.limit)}"
        tried = ", ".join(map(readable, self.attempts.values()))
        return f"memory={memory}: the program takes {share}.\nCompiled programs: {tried}."


@called_as('fit(make, "2GB")(x)')
def fit(
    make: Callable[[int], Callable[..., Any]], limit: Memory = None, *, progress: bool = False
) -> Callable[..., Fitted]:
    """The largest budget with which a whole program fits in the memory of a device.

    A program also holds arguments, results and temporaries that no budget covers. The compiler
    knows the total: `fit` compiles with an unlimited budget and, if that is too much, with others,
    usually four and at most eight in all. Nothing runs. Donated arguments count once, closed-over
    arrays too. The host's memory does not count if the device has its own.

    **Arguments:**

    - `make`: a function of a budget in bytes, an int, which it passes on as `memory=`. It returns
        the function to compile, or `jax.jit` of it, with donated arguments for example.
    - `limit`: the most bytes that the program may take on each device: an int or a string such as
        `"16GB"`. `None`, the default, is nine tenths of the memory of the default device that is
        free or holds the arguments.
    - `progress`: whether to show a bar, if tqdm is installed.

    **Returns:**

    A function from the arguments, arrays or `jax.ShapeDtypeStruct`s, to a
    [`jax_revolve.typing.Fitted`][]. It takes at least 0.857 of the limit, unless more would not
    help, or plans jump by more.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not as above, or the least budget is too much.

    !!! Example

        ```python
        import jax
        import jax.numpy as jnp
        from jax_revolve import checkpointed_fori_loop, fit

        def gradient(memory):
            step = lambda i, u: jnp.sin(u)
            return jax.grad(lambda u: checkpointed_fori_loop(0, 99, step, u, memory=memory).sum())

        print(fit(gradient, "9kB")(jnp.ones(100)))
        ```
    """
    if not callable(make):
        raise mistyped("make", make, "a function from a number of bytes to a function")
    if not isinstance(progress, bool):
        raise mistyped("progress", progress, "True or False")
    most = None if limit is None else parse_bytes(limit, "limit")

    @filtered_traceback
    def fitted(*args: Any) -> Fitted:
        with share_bar() if progress else nullcontext(lambda share, now: None) as show:
            return _Search(make, args, usable_bytes(args) if most is None else most, show).result()

    return fitted


class _Attempt(NamedTuple):
    memory: int
    bytes: float
    kept: int = 0  # the bytes of arguments, results and constants
    compiled: Any = None


@dataclass(eq=False)
class _Search:
    make: Callable[[int], Callable[..., Any]]
    args: tuple[Any, ...]
    limit: int
    show: Show
    known: dict[str, _Attempt] = field(default_factory=dict)

    def result(self) -> Fitted:
        best = self.attempt(UNLIMITED)
        memory, size, kept, program = best if best.bytes <= self.limit else self.search(best)
        if size == best.bytes > self.limit:
            raise ValueError(
                f"limit must be at least {size} bytes here, but is {self.limit}, and no budget "
                "changes that: the function that make returns must give its loops the memory that "
                "make is given, or is too large without them. Pass smaller arguments or more."
            )
        if size > self.limit:
            raise ValueError(
                f"limit must be at least {size} bytes here, but is {self.limit}: with the least "
                f"budget, memory={memory}, the program takes {size}. {max(size - memory, kept)} of "
                f"them do not depend on the budget, of which {kept} are arguments, results and "
                "closed-over arrays. Pass at least that much, or smaller arguments."
            )
        self.show(1.0, f"compiled: {len(self.known)}")
        tried = {a.memory: a.bytes for a in self.known.values()}
        return Fitted(memory, int(size), self.limit, program, tried)

    def search(self, unlimited: _Attempt) -> _Attempt:
        """The attempt with the largest budget that fits; with the least one if none does. Budgets
        are numbered: number `low` fits and number `high` does not."""
        low, high = -1, self.number(UNLIMITED)
        tried, number = {high: unlimited}, self.number(self.limit - unlimited.kept)
        last, slope = unlimited, 1.0  # bytes of the program for one of the budget
        while low + 1 < high and len(self.known) < MOST_COMPILED and len(tried) < MOST_TRACED:
            is_last = len(self.known) + 1 == MOST_COMPILED or len(tried) + 1 == MOST_TRACED
            number = 0 if low < 0 and is_last else min(max(number, low + 1), high - 1)
            a = tried[number] = self.attempt(self.budget(number))
            if last is unlimited and inf > a.bytes > self.limit:
                slope = max((a.bytes - a.kept) / max(a.memory, 1), 1.0)  # at most
            elif last is not unlimited and a.bytes != last.bytes and max(a.bytes, last.bytes) < inf:
                slope = max((a.bytes - last.bytes) / (a.memory - last.memory), 1e-3)
            last, next_one = a, self.budget(number + 1) - a.memory
            low, high = (low, number) if a.bytes > self.limit else (number, high)
            if a.bytes <= self.limit < a.bytes + slope * next_one:
                return a
            # Plans may jump, so later, every third time, we bisect.
            ideal = a.memory + (self.limit - a.bytes) / slope if a.bytes < inf else 0
            guess = self.number(max(ideal, 0))
            is_guessed = low < guess < high and (len(tried) < 5 or len(tried) % 3 > 0)
            number = guess if is_guessed else (low + high) // 2
        return tried[max(low, min(tried))]

    def attempt(self, memory: int) -> _Attempt:
        self.show(len(self.known) / MOST_COMPILED, f"compiled: {len(self.known)}")
        lowered = (traced := self.trace(memory)).lower()
        if (text := text_of(_inner(lowered))) not in self.known:
            try:
                done = lowered.compile()
                sizes = program_bytes(_inner(done), constants(_inner(traced).jaxpr))
                self.known[text] = _Attempt(memory, *sizes, done)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or memory == self.least:
                    raise
                self.known[text] = _Attempt(memory, inf)
        return self.known[text]._replace(memory=memory)

    def trace(self, memory: int) -> Any:
        expected = (
            f"make must be a function from a budget in bytes to the function to compile, such as "
            f"lambda memory: jax.grad(partial(loss, memory=memory)), but make({memory})"
        )
        fun: Any
        try:
            fun = self.make(memory)
        except (OverflowError, TypeError) as error:  # as if it were the function to compile
            raise TypeError(f"{expected} raises {type(error).__name__}: {error}") from error
        if not callable(fun):
            raise TypeError(f"{expected} returns {type(fun).__name__} {fun}.")
        # Flax's own jit also returns what `fun` changes in modules.
        jit: Any = sys.modules["flax.nnx"].jit if variables_in(self.args) else jax.jit
        traceable: Any = fun if hasattr(fun, "trace") else jit(fun)
        return traceable.trace(*self.args)

    @cached_property
    def least(self) -> int:
        memory = 0
        while True:
            try:
                self.trace(memory)
                return memory
            except TooLittleMemory as error:
                memory = error.least if error.least > memory else 2 * memory

    def budget(self, number: int) -> int:
        return self.least + int(max(self.least, SMALL) * (FINEST**number - 1))

    def number(self, memory: float) -> int:
        return int(log1p(max(memory - self.least, 0) / max(self.least, SMALL)) / log(FINEST))


def _inner(stage: Any) -> Any:
    """JAX's stage in Flax's."""
    return (
        getattr(stage, "_inner_obj", stage) if type(stage).__module__.startswith("flax") else stage
    )


def constants(jaxpr: Any) -> list[Any]:
    """The arrays that a program closes over, at any depth."""
    found, rest = {id(c): c for c in getattr(jaxpr, "consts", ())}, list(jaxpr.eqns)
    while rest:
        for inner in inner_jaxprs(rest.pop()):
            found |= {id(c): c for c in getattr(inner, "consts", ())}
            rest += inner.eqns
    return list(found.values())


def program_bytes(program: Any, constants: Iterable[Any]) -> tuple[int, int]:
    """The bytes that a compiled program takes on each device, and how many of them are arguments,
    results and constants. A GPU counts constants as code, a CPU does not count them at all."""
    sizes = program.memory_analysis()
    if sizes is None:
        backend = jax.default_backend()
        raise NotImplementedError(f"The compiler for {backend} does not report a program's memory.")
    kept = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    kept += max(sizes.generated_code_size_in_bytes, bytes_of(map(jax.typeof, constants)))
    return kept + sizes.temp_size_in_bytes, kept


def usable_bytes(args: Any) -> int:
    """Nine tenths of the memory of the default device that is free or holds the arguments."""
    (device,) = jnp.zeros(()).devices()
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        free = stats["bytes_limit"] - stats["bytes_in_use"]
    elif device.platform == "cpu" and MEMINFO.exists():
        free = 1024 * int(re.findall(r"MemAvailable: *(\d+) kB", MEMINFO.read_text())[0])
    else:
        raise ValueError(f"limit must be given: {device} does not report its free memory.")
    arrays = [x for x in jax.tree.leaves(args) if isinstance(x, jax.Array)]
    shards = [shard for x in arrays for shard in x.addressable_shards if shard.device == device]
    return int(0.9 * (free + bytes_of(jax.typeof(shard.data) for shard in shards)))
