"""The loops whose gradient is to keep to a budget of memory."""

from dataclasses import dataclass

from workloads import Workload, lstm, rnn, stencil


@dataclass(frozen=True)
class BudgetWorkload(Workload):
    """A workload with the shares of memory that are measured; all of it is what `lax.scan` takes,
    which stores everything.

    At the shares `ours_at` our loop is timed, at `rivals_at` also pure Revolve and Equinox, at
    `nested_at` nested scans. At `choices_at` the plan that our loop chooses is compared with others
    that fit. `of_rounds` is how many of the least rounds are taken: less than 1 for slow loops.
    """

    ours_at: tuple[float, ...] = ()
    rivals_at: tuple[float, ...] = ()
    nested_at: tuple[float, ...] = ()
    choices_at: tuple[float, ...] = ()
    of_rounds: float = 1.0


SHARES = (0.25, 0.1, 0.05, 0.02)


def all_workloads() -> list[BudgetWorkload]:
    at = {"ours_at": (0.1, 0.05, 0.02, 0.01), "rivals_at": (0.05, 0.02), "nested_at": (0.05,)}
    light, heavy = lstm(1000, 16, 128, ()), lstm(1000, 32, 512, ())
    return [
        BudgetWorkload(**vars(light), **at, choices_at=SHARES),
        BudgetWorkload(**vars(heavy), **at, of_rounds=0.6),
        BudgetWorkload(**vars(stencil(1000, 20_000, ())), choices_at=SHARES),
        BudgetWorkload(**vars(rnn(1000, 16, 128, ())), choices_at=SHARES),
    ]


def smoke_workloads() -> list[BudgetWorkload]:
    """Small ones, to see that everything runs; their times mean nothing."""
    at = {"ours_at": (0.2, 0.05, 0.02, 0.001), "rivals_at": (0.05,), "nested_at": (0.05,)}
    return [
        BudgetWorkload(**vars(lstm(194, 2, 4, ())), **at, of_rounds=0.6),
        BudgetWorkload(**vars(stencil(200, 16, ())), choices_at=(0.05,)),
        BudgetWorkload(**vars(rnn(200, 2, 4, ())), choices_at=(0.1,)),
    ]
