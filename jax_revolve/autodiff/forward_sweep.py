"""The slots engine's forward sweep as a primitive.

Its derivative is the forward sweep of the loop of values and tangents, whose slots hold pairs: the
values are what this sweep holds, and the tangents are the derivative of that. So a derivative of a
gradient finds the pairs there, and runs nothing twice.

Unused ys are not computed: JAX tells a primitive which of its results are used, and XLA does not
find out by itself that a loop inside a loop only carries a buffer along.
"""

from functools import partial
from typing import Any, NamedTuple

import jax

from jax_revolve import _compat
from jax_revolve._compat import ClosedJaxpr, as_array, with_weak_type
from jax_revolve.autodiff.family import Flat, jvp_of_nonzero
from jax_revolve.autodiff.loop_primitive import as_loop, loop_activity, loop_p
from jax_revolve.autodiff.sweep import Active, SweepFamily, Vmap, mapped
from jax_revolve.engine.offline import run_forward_offline, tape_the_last_block
from jax_revolve.engine.online import run_forward_online
from jax_revolve.engine.plain import run_plain
from jax_revolve.engine.slots import Held
from jax_revolve.schedule.storage import Disk
from jax_revolve.step.activity import Activity, Mask
from jax_revolve.step.loop import Loop, is_inexact, pick, plan_of, restart_of, substitute
from jax_revolve.step.once import once
from jax_revolve.step.paired import paired
from jax_revolve.step.primal_half import with_primal_half
from jax_revolve.step.steps import Steps
