"""Which step to run, store and tape next: integers only, no JAX.

`binomial` holds the mathematics, `actions` spells a schedule out action by action, `online` places
checkpoints where the number of steps is not known, `nested` holds the lengths of loops inside
loops, and `plan` what callers see.
"""
