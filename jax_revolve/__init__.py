"""Long loops in JAX, differentiable in little memory."""

from jax_revolve._scan import checkpointed_scan as checkpointed_scan
from jax_revolve.schedule.plan import Plan as Plan
from jax_revolve.schedule.plan import plan as plan
