"""Which step to run, store and tape next, and what that costs: exact integers, no JAX.

Begin with `binomial`, the mathematics of Revolve in a page, then `actions`, which spells a schedule
out action by action.

- `binomial`, `actions`: loops whose length is known. `online`: loops that may stop at any step.
- `multistage`, `two_level`: checkpoints on two levels, on the device and in a storage.
- `nested`: lengths for loops inside loops. `chain`: layers of different sizes.
- `plan`: what callers see of a schedule. `planning`: making one from numbers of checkpoints.
- `cost`: predicted bytes and time of a plan. `selection`: the predicted quickest one that fits.
- `storage`: what `storage=` takes. `arguments`: checks with errors that say what is allowed.
- `report`: a plan as text and as a picture.

Imports nothing but Python's own library. All other rooms stand on it.
"""
