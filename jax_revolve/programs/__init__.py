"""Whole programs: every loop that a function runs is checkpointed, and the function stays as it is.

Begin with `rewrite`: `checkpoint_loops` traces a function, finds its loops, chooses a plan for
each, and runs the jaxpr with these loops replaced.

- `rewrite`: `checkpoint_loops`, and what a function changes in Flax NNX modules.
- `explain`: the plan, the memory and the evaluations of every loop in a function.
- `measure`: the measured times and bytes of gradients, for a few plans.
- `find`: the loops in a jaxpr, at any depth, their sizes, others in their places, and equations
  whose loops stay as they are.
- `choice`: which loops are checkpointed, and with which options.
- `batched`: while loops that `jax.vmap` has made of others.
- `share`: one memory budget for several loops, after or inside one another.
- `fit`: the largest budget with which a compiled program fits.

May import `loops`, `autodiff` and all rooms below them. No other room imports this one.
"""
