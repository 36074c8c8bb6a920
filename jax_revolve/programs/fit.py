"""`fit`: the largest budget with which a whole program fits.

With a budget of `b` bytes a program takes about `fixed + b`, and each compilation shows how large
`fixed` is: the next guess adds what is missing. A smaller limit must not give a larger program. So
the limit is rounded down to a *goal*, a power of `APART`, that alone decides what is tried, and a
program between the next lower goal and this one ends the search.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, log, log1p
from typing import Any, NamedTuple

import jax

from jax_revolve._compat import program_bytes, text_of, usable_bytes
from jax_revolve.progress.limit import Show, limit_bar
from jax_revolve.schedule.arguments import Memory, TooLittleMemory, mistyped, parse_bytes, readable

UNLIMITED = 2**62
MOST_COMPILED, MOST_TRACED = 8, 24  # a program that is equal to an earlier one is not compiled
APART = 1.08  # a result takes more than APART**-2 = 0.857 of the limit
FINEST, SMALL = 1.01, 1000  # the ratio of budgets that are tried; if small, they are 10 bytes apart


@dataclass(frozen=True, eq=False)
class Fitted:
    """The result of [`jax_revolve.fit`][]: the budget `memory`, the `bytes` that the whole program
    takes on a device, their `limit`, and the program, `compiled`, to be called with arguments of
    the same types. `attempts` has the bytes of each program that was compiled, by budget."""

    memory: int
    bytes: int
    limit: int
    compiled: Any = field(repr=False)
    attempts: dict[int, float]

    def __str__(self) -> str:
        memory = "unlimited" if self.memory == UNLIMITED else self.memory
        share = f"{readable(self.bytes)}, {self.bytes / self.limit:.0%} of {readable(self.limit)}"
        tried = ", ".join(map(readable, self.attempts.values()))
        return f"memory={memory}: the program takes {share}.\nCompiled programs: {tried}."


def fit(
    make: Callable[[int], Callable[..., Any]], limit: Memory = None, *, progress: bool = False
) -> Callable[..., Fitted]:
    """The largest budget with which a whole program fits in the memory of a device.

    `memory=` limits what the library stores. A program also holds its arguments, its results, and
    temporaries that no budget covers. The compiler knows the total: `fit` compiles the program with
    an unlimited budget and, if that is too much, with others, usually four and at most eight in
    all. Nothing runs. Donated arguments count once, and so do arrays that the function closes over.
    The memory of the host does not count if the device has its own.

    **Arguments:**

    - `make`: a function of a budget in bytes, which it passes on as `memory=`. It returns the
        function to compile, or `jax.jit` of it, with donated arguments for example.
    - `limit`: the most bytes that the program may take on each device: an int or a string such as
        `"16GB"`. `None`, the default, is nine tenths of the memory of the default device that is
        free or holds the arguments.
    - `progress`: whether to show a bar, if tqdm is installed.

    **Returns:**

    A function of the program's arguments, arrays or `jax.ShapeDtypeStruct`s, to a
    [`jax_revolve.Fitted`][]. Its program takes 0.857 of the limit or more wherever more is of use.
    Results are reproducible, and a smaller limit never gives a larger program, provided that
    programs grow with their budgets.

    **Raises:**

    `TypeError` or `ValueError` if an argument is not as above, or if even the least budget is too
    much; what `make` and its function raise.

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

    def fitted(*args: Any) -> Fitted:
        with limit_bar() if progress else nullcontext(lambda share, now: None) as show:
            return _Search(make, args, usable_bytes(args) if most is None else most, show).result()

    return fitted


class _Attempt(NamedTuple):
    memory: int
    bytes: float
    kept: int = 0  # of the bytes, those of arguments, results and constants
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
        if size > self.limit:
            raise ValueError(
                f"limit must be at least {size} bytes here, but is {self.limit}: with the least "
                f"budget, memory={memory}, the program takes {size}. {max(size - memory, kept)} of "
                f"them do not depend on the budget, of which {kept} are arguments, results and "
                "closed-over arrays. Pass at least that much, or smaller arguments."
            )
        self.show(1.0, f"compiled: {len(self.known)}")
        attempts = {a.memory: a.bytes for a in self.known.values()}
        return Fitted(memory, int(size), self.limit, program, attempts)

    def search(self, unlimited: _Attempt) -> _Attempt:
        """The attempt with the largest budget that fits; with the least one if none does."""
        goal, enough = 1.0, 0.0
        while goal * APART <= self.limit:
            goal, enough = goal * APART, goal
        aim = (goal + enough) / 2
        # Budgets have numbers. Up to number low the goal is kept to, and from number high on not.
        low, high, left = -1, (top := self.number(UNLIMITED)), MOST_COMPILED - 1
        tried, guess = {top: unlimited}, aim - unlimited.kept
        while low + 1 < high and left:
            number = min(max(self.number(guess), low + 1), high - 1)
            number = 0 if low < 0 and left == 1 else number
            attempt = tried[number] = self.attempt(self.budget(number))
            if enough < attempt.bytes <= goal:
                return attempt
            left = min(MOST_COMPILED - len(self.known), MOST_TRACED - len(tried))
            is_flat = low >= 0 and attempt.bytes == tried[low].bytes
            low, high = (low, number) if attempt.bytes > goal else (number, high)
            if low < 0:
                guess = attempt.memory - min(attempt.bytes - aim, 0.75 * attempt.memory)
            elif high == top:
                guess = attempt.memory + max(aim - attempt.bytes, is_flat * attempt.memory)
            elif len(tried) % 3 < 2 and tried[high].bytes < inf:
                share = (aim - tried[low].bytes) / (tried[high].bytes - tried[low].bytes)
                guess = tried[low].memory + share * (tried[high].memory - tried[low].memory)
            else:  # bytes may jump, so a third of the guesses bisects
                guess = self.budget((low + high) // 2)
        # If all budgets are known, the limit may allow what the goal does not.
        may_exceed = low + 1 == high and tried[high].bytes <= self.limit
        return tried[high if low < 0 or may_exceed else low]

    def attempt(self, memory: int) -> _Attempt:
        self.show(len(self.known) / MOST_COMPILED, f"compiled: {len(self.known)}")
        lowered = (traced := self.trace(memory)).lower()
        if (text := text_of(lowered)) not in self.known:
            try:
                program = lowered.compile()
                sizes = program_bytes(program, traced.jaxpr.consts)
                self.known[text] = _Attempt(memory, *sizes, program)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or memory == self.least:
                    raise
                self.known[text] = _Attempt(memory, inf)
        return self.known[text]._replace(memory=memory)

    def trace(self, memory: int) -> Any:
        fun: Any = self.make(memory)
        return (fun if hasattr(fun, "trace") else jax.jit(fun)).trace(*self.args)

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
        above = max(memory - self.least, 0) / max(self.least, SMALL)
        return int(log1p(above) / log(FINEST))
