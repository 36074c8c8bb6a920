"""The measured time and bytes of a loop's gradient, for several plans.

Each gradient is compiled once and runs many times. The plans take turns, so that other work on the
machine slows down all of them equally.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import jax

from jax_revolve._compat.values import is_traced, zeros
from jax_revolve.autodiff.loop import run_loop
from jax_revolve.progress.meters import Show, limit_bar
from jax_revolve.schedule.arguments import mistyped, parse_bytes
from jax_revolve.schedule.options import Options
from jax_revolve.schedule.plan import Plan
from jax_revolve.schedule.report import FEWEST_RUNS, Measurement, Report
from jax_revolve.schedule.selection import contenders
from jax_revolve.step.loop import Loop, is_inexact, pick, plan_of, substitute

MOST_ROUNDS = 30

TELLING_RUNS = 3
CLEARLY = 1.1
"""After `TELLING_RUNS` runs, we drop a program whose fastest run took more than `CLEARLY` times the
median of the fastest program. Its turns go to the others."""

COMPILING = 0.5
"""The share of the seconds after which no further plan is compiled."""


def check_limit(measure: object, seconds: object) -> float | None:
    """The seconds that measuring may take, or `None` if nothing is to be measured."""
    if not isinstance(measure, bool):
        raise mistyped("measure", measure, "True or False")
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise mistyped("seconds", seconds, "a number > 0")
    if not float(seconds) > 0:
        raise ValueError(f"seconds must be a number > 0, but is {seconds!r}.")
    return float(seconds) if measure else None


def check_arrays(values: Sequence[Any]) -> None:
    """Refuse values on which a program cannot run."""
    for value in values:
        traced = "an array that a transformation such as jax.jit, jax.vmap or jax.grad traces"
        is_shape = isinstance(value, jax.ShapeDtypeStruct)
        if is_shape or is_traced(value):
            raise ValueError(
                "measure must be False unless the arguments, and what the function closes over, "
                f"are real arrays: measuring runs the loop, but {value} is "
                f"{'a shape' if is_shape else traced}. Pass arrays, outside transformations."
            )


def measured_report(loop: Loop, operands: list[Any], report: Report, seconds: float) -> Report:
    """The report with measurements of the plans that fit and may be the fastest."""
    plans, is_interrupted = plans_to_measure(loop.plan, report), False
    with limit_bar() as show:
        measuring = _Measuring(loop._replace(progress=None), operands, seconds, show)
        try:
            measuring.compile(plans)
            measuring.warm_up()
            measuring.take_turns()
            show(1.0, f"{len(measuring.programs)} plans measured")
        except KeyboardInterrupt:
            if not measuring.measured:
                raise
            is_interrupted = True
    measured, too_large = measuring.measured, measuring.too_large
    if not measured:
        raise too_large[plans[0]]
    compared = [p for p in measured if not p.is_slow] or measured
    results = {p.plan: Measurement.of(p.times, p.temporaries, p.peak) for p in measured}
    return replace(
        report,
        plan=min(compared, key=lambda p: median(p.times)).plan,
        measured=results,
        unmeasured=[p for p in plans if p not in results and p not in too_large],
        too_large=list(too_large),
        is_interrupted=is_interrupted,
    )


def plans_to_measure(wanted: Plan | Options | None, report: Report) -> list[Plan]:
    """The chosen plan and, unless the user fixed it, others that may be faster."""
    chosen = report.plan
    is_fixed = report.sizes.is_walked_back
    if is_fixed or not isinstance(wanted, Options) or wanted.storage is not None:
        return [chosen]
    memory = report.memory(chosen) if wanted.memory is None else parse_bytes(wanted.memory)
    block_size = None if wanted.block_size is None else chosen.block_size
    how = {"block_size": block_size, "is_while": report.is_while}
    return list(contenders(chosen, report.sizes, memory, **how))


@dataclass(eq=False)
class Program:
    """The compiled gradient of a loop with one plan."""

    plan: Plan
    run: Callable[[], Any]
    temporaries: int | None
    peak: int | None = None
    times: list[float] = field(default_factory=list)
    is_slow: bool = False
    """Whether it is clearly slower than the fastest. It then neither runs nor is compared any more,
    because the speed of the machine may have changed."""

    def time(self) -> float:
        before = perf_counter()
        jax.block_until_ready(self.run())
        return perf_counter() - before


def compile_gradient(loop: Loop, operands: list[Any]) -> Program:
    """The loop's results and its operands' cotangents, for cotangents of ones."""
    first = loop.num_condition_consts
    mask = [is_inexact(x) and i >= first for i, x in enumerate(operands)]

    def gradient(*operands: Any) -> tuple[list[Any], Any]:
        def results(*chosen: Any) -> list[Any]:
            flat = run_loop(loop, substitute(operands, mask, chosen))
            return [x for x in flat if is_inexact(x)]

        values, pull_back = jax.vjp(results, *pick(operands, mask))
        return values, pull_back([zeros(jax.typeof(x)) + x.dtype.type(1) for x in values])

    compiled = jax.jit(gradient).lower(*operands).compile()
    tells = compiled.memory_analysis()
    temporaries = None if tells is None else tells.temp_size_in_bytes
    return Program(plan_of(loop), lambda: compiled(*operands), temporaries)


def peak_bytes(operands: list[Any]) -> int | None:
    """The peak of the allocator of the operands' device so far, in bytes, if reported."""
    device = min(operands[0].sharding.addressable_devices, key=lambda d: d.id)
    return (device.memory_stats() or {}).get("peak_bytes_in_use")


@dataclass(eq=False)
class _Measuring:
    loop: Loop
    operands: list[Any]
    seconds: float
    show: Show
    programs: list[Program] = field(default_factory=list)
    too_large: dict[Plan, Exception] = field(default_factory=dict)
    start: float = field(default_factory=lambda: perf_counter())

    @property
    def elapsed(self) -> float:
        return perf_counter() - self.start

    @property
    def measured(self) -> list[Program]:
        return [p for p in self.programs if len(p.times) >= FEWEST_RUNS]

    def tell(self, now: str, share: float = 0.0) -> None:
        self.show(min(max(share, self.elapsed / self.seconds), 1.0), now)

    @contextmanager
    def leaving_out(self, plan: Plan) -> Iterator[None]:
        """Go on without the plan if the device has too little memory for it."""
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            self.programs = [p for p in self.programs if p.plan != plan]
            self.too_large[plan] = error

    def compile(self, plans: Sequence[Plan]) -> None:
        """Compile the gradient with the first plan, and with more as long as there is time."""
        took = 0.0
        for i, plan in enumerate(plans, 1):
            before = self.elapsed
            if self.programs and before + took > COMPILING * self.seconds:
                return
            self.tell(f"compiling plan {i} of {len(plans)}")
            with self.leaving_out(plan):
                self.programs.append(compile_gradient(self.loop._replace(plan=plan), self.operands))
            took = self.elapsed - before

    def warm_up(self) -> None:
        """Run each program once, as many as there is time for. The allocator's peak never decreases
        in a process. So programs run in order of their temporaries, and a program only has a peak
        if it raises the process's."""
        is_first = True
        for program in sorted(self.programs, key=lambda p: p.temporaries or 0):
            if program not in self.programs:
                continue
            self.tell(f"first runs of {len(self.programs)} plans")
            with self.leaving_out(program.plan):
                before, took = peak_bytes(self.operands), program.time()
                after = peak_bytes(self.operands)
                program.peak = None if after == before else after
                each, left = (1 + FEWEST_RUNS) * took, self.seconds - self.elapsed
                while is_first and len(self.programs) > 1 and len(self.programs) * each > left:
                    self.programs.pop()
                is_first = False

    def take_turns(self) -> None:
        """Time the programs in rounds. Slow ones go on only if the others turn out too large."""
        order = Random(0)
        for done in range(MOST_ROUNDS):
            turns = [p for p in self.programs if not p.is_slow] or self.programs
            if done >= TELLING_RUNS and turns:
                longest = CLEARLY * min(median(p.times) for p in turns)
                for program in turns:
                    program.is_slow = min(program.times) > longest
                turns = [p for p in turns if not p.is_slow]
            for program in order.sample(turns, len(turns)):
                if done >= FEWEST_RUNS and self.elapsed > self.seconds:
                    return
                now = f"plans: {len(turns)}, round {done + 1} of {MOST_ROUNDS}"
                self.tell(now, done / MOST_ROUNDS)
                with self.leaving_out(program.plan):
                    program.times.append(program.time())
