"""Long loops in JAX, differentiable in little memory."""

from jax_revolve._chain import checkpointed_chain as checkpointed_chain
from jax_revolve._checkpointed import Checkpointed as Checkpointed
from jax_revolve._checkpointed import checkpoint_layers as checkpoint_layers
from jax_revolve._explain import explain as explain
from jax_revolve._fori import checkpointed_fori_loop as checkpointed_fori_loop
from jax_revolve._loops_report import LoopsReport as LoopsReport
from jax_revolve._program import FoundLoop as FoundLoop
from jax_revolve._progress import ProgressMeter as ProgressMeter
from jax_revolve._progress import TextMeter as TextMeter
from jax_revolve._progress import TqdmMeter as TqdmMeter
from jax_revolve._rewrite import checkpoint_loops as checkpoint_loops
from jax_revolve._rewrite import explain_loops as explain_loops
from jax_revolve._scan import checkpointed_scan as checkpointed_scan
from jax_revolve._while import bounded_while_loop as bounded_while_loop
from jax_revolve.schedule.plan import Plan as Plan
from jax_revolve.schedule.planning import longest_plan as longest_plan
from jax_revolve.schedule.planning import plan as plan
from jax_revolve.schedule.report import Report as Report
from jax_revolve.schedule.storage import Disk as Disk
from jax_revolve.schedule.storage import HostMemory as HostMemory
from jax_revolve.schedule.two_level import TwoLevelPlan as TwoLevelPlan
