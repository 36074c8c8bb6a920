"""What is measured of one while loop."""

from dataclasses import replace

from contenders import Contender
from measurements import Measurement, measure_programs
from programs import Program, gradient, hvp, jvp, value
from tqdm import tqdm
from while_contenders import bounded, checkpoints_for, equinox, masked, ours, plain
from while_workloads import BOUNDS, SECOND_ORDER, VMAP, WhileWorkload

from jax_revolve.schedule.planning import Checkpoints

GRADIENT = "gradient"
GRADIENT_BY_DEFAULT = "gradient, default checkpoints"
MOST_SHORT_ROUNDS = 2000  # for programs of less than a millisecond


def measure(workload: WhileWorkload, budget: float, least_rounds: int) -> list[Measurement]:
    """What the workload's family is for; `budget` is the time in seconds for the gradients' rounds,
    and a quarter of that each for the other rounds."""
    special = {SECOND_ORDER: _second_order, BOUNDS: _bounds, VMAP: _vmap}
    return special.get(workload.family, _each_mode)(workload, budget, least_rounds)


def _each_mode(workload: WhileWorkload, budget: float, least_rounds: int) -> list[Measurement]:
    """Value, derivative and gradient."""
    bound = workload.max_steps
    loops = [plain(), ours(workload.length, bound)]
    values = [value(workload, contender) for contender in loops]
    tangents = [jvp(workload, contender) for contender in (*loops, bounded(bound))]
    return [
        *measure_programs(workload, "value", values, budget / 4, least_rounds),
        *measure_programs(workload, "jvp", tangents, budget / 4, least_rounds),
        *measure_programs(workload, GRADIENT, _gradients(workload), budget, least_rounds),
    ]


def _gradients(workload: WhileWorkload) -> list[Program]:
    """Every contender's gradient, that of the masked scan first."""
    bound = workload.max_steps
    contenders = [masked(bound), bounded(bound)]
    for wanted in workload.checkpoints:
        s = checkpoints_for(bound, wanted)
        contenders += [ours(workload.length, bound, s), equinox(bound, s)]
    progress = tqdm(contenders, desc="Compiling", unit="program", leave=False)
    return [gradient(workload, contender) for contender in progress]


def _second_order(workload: WhileWorkload, budget: float, least_rounds: int) -> list[Measurement]:
    """A product with the Hessian."""
    bound = workload.max_steps
    loop = ours(workload.length, bound)
    assert loop.checkpoints is not None
    contenders = [masked(bound), bounded(bound), equinox(bound, loop.checkpoints), loop]
    programs = [hvp(workload, contender) for contender in contenders]
    return measure_programs(workload, "hvp", programs, budget / 4, least_rounds)


def _bounds(workload: WhileWorkload, budget: float, least_rounds: int) -> list[Measurement]:
    """Value and gradients of the same short loop under several bounds."""

    def short(quantity: str, programs: list[Program]) -> list[Measurement]:
        return measure_programs(
            workload, quantity, programs, budget / 4, least_rounds, MOST_SHORT_ROUNDS
        )

    baseline, wanted = masked(workload.length), workload.checkpoints[0]
    values = [plain(), *_ours_by_bound(workload)]
    gradients = [baseline, *_ours_by_bound(workload, wanted)]
    by_default = [baseline, *_ours_by_bound(workload)]
    return [
        *short("value", [value(workload, contender) for contender in values]),
        *short(GRADIENT, [gradient(workload, contender) for contender in gradients]),
        *short(GRADIENT_BY_DEFAULT, [gradient(workload, contender) for contender in by_default]),
    ]


def _ours_by_bound(workload: WhileWorkload, wanted: Checkpoints = None) -> list[Contender]:
    return [
        replace(ours(workload.length, bound, wanted), detail=f"max_steps {bound}")
        for bound in workload.bounds
    ]


def _vmap(workload: WhileWorkload, budget: float, least_rounds: int) -> list[Measurement]:
    """The gradient; the masked scan beside it is told the number of steps."""
    bound = workload.max_steps
    contenders = [masked(workload.length)]
    for wanted in workload.checkpoints:
        s = checkpoints_for(bound, wanted)
        contenders += [ours(workload.length, bound, s), equinox(bound, s)]
    programs = [gradient(workload, contender) for contender in contenders]
    return measure_programs(workload, GRADIENT, programs, budget / 4, least_rounds)
