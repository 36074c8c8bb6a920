"""Random programs: some in every run, many more in the slow one, always the same ones.

`cd tests && python -m programs --first SEED --count 1 --minimize` makes one that fails smaller.
"""

import pytest

from programs.program import Program, chosen
from programs.running import Refused, check

FIRST, FEW, MANY = 700_000, 12, 100
LONG = {700034, 700095, 700180}
"""Programs of the first few that take XLA up to a minute to compile."""


def marks(number: int, program: Program) -> list[pytest.MarkDecorator]:
    return [] if number < FEW and program.seed not in LONG else [pytest.mark.slow]


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=str(program.seed), marks=marks(i, program))
        for i, program in enumerate(chosen(FIRST, FEW + MANY))
    ],
)
def test_a_random_program(program: Program) -> None:
    print(program)
    try:
        check(program)
    except Refused as error:
        pytest.skip(f"jax.lax refuses it: {str(error).splitlines()[0][:80]}")
