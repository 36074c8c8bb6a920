"""Measuring the profile of a device: `python -m jax_revolve calibrate`.

Begin with `calibrate`.

- `command`: `python -m jax_revolve calibrate`.
- `calibrate`: measures a profile, and says how well it predicts what was measured.
- `workloads`: the loops that are timed, and their plans.
- `transfers`: writing and reading checkpoints.
- `fit`: a profile from the times.

May import `loops` and all rooms below it.
"""
