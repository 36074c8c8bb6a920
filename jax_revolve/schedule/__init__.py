"""Schedules: which step to run, store and tape next, and at what cost. Exact integers, no JAX.

Begin with `binomial`, the mathematics of Revolve on one page. Then read `actions`, the schedule as
a loop of actions, and `plan`, the object that users see.

Schedules:

- `binomial`: the formulas for checkpoints on one level.
- `actions`: the actions of a schedule, one by one.
- `online`: checkpoints of loops whose length is unknown.
- `levels`: checkpoints on several levels, in loops of static length.
- `segments`: where a storage beyond the device holds checkpoints.
- `chain`: layers of different sizes.

Plans:

- `plan`: the plan of a loop.
- `planning`: plans from a number of checkpoints or from a budget.
- `options`: what the user asks of a loop, and the plan that it becomes once sizes are known.
- `cost`: the bytes of a plan, and a prediction of its time.
- `selection`: the plan with the least predicted time within a memory budget.
- `storage`: `HostMemory` and `Disk`, the values of `storage=`.
- `arguments`: checks of arguments, and amounts of memory such as "2GiB".
- `report`: the plans worth considering, in a table or a picture.
- `picture`: one schedule as a picture.

Imports the standard library, NumPy and `profiles.profile` only. All other rooms except `progress`,
`_compat` and `profiles` import this one.
"""

from jax_revolve.schedule import actions as actions
