"""The types of arguments and results, the exceptions that calls raise, and progress meters."""

from jax_revolve.host.states import DamagedError as DamagedError
from jax_revolve.loops.inverse import Drift as Drift
from jax_revolve.programs.certify import Certificate as Certificate
from jax_revolve.programs.choice import Where as Where
from jax_revolve.programs.explain import Explanation as Explanation
from jax_revolve.programs.find import FoundLoop as FoundLoop
from jax_revolve.programs.fit import Fitted as Fitted
from jax_revolve.progress.meters import ProgressMeter as ProgressMeter
from jax_revolve.progress.meters import TqdmMeter as TqdmMeter
from jax_revolve.schedule import actions as actions
from jax_revolve.schedule.arguments import Memory as Memory
from jax_revolve.schedule.cost import Sizes as Sizes
from jax_revolve.schedule.planning import Checkpoints as Checkpoints
from jax_revolve.schedule.report import Report as Report
from jax_revolve.schedule.storage import Storage as Storage
from jax_revolve.step.loop import NoReverseMode as NoReverseMode
