"""Random programs: forty in every run, four hundred in the slow one, always the same ones.

`cd tests && python -m programs --first SEED --count 1 --minimize` makes one that fails smaller.
"""

import pytest

from programs.program import Program
from programs.running import Refused, check

FIRST, FEW, MANY = 700_000, 40, 400


@pytest.mark.usefixtures("compile_quickly")
@pytest.mark.parametrize(
    "seed",
    [pytest.param(FIRST + i, marks=[] if i < FEW else pytest.mark.slow) for i in range(FEW + MANY)],
)
def test_a_random_program(seed: int) -> None:
    program = Program.random(seed)
    print(program)
    try:
        check(program)
    except Refused as error:
        pytest.skip(f"jax.lax refuses it: {str(error).splitlines()[0][:80]}")
