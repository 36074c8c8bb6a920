"""Whole programs: checkpoint every loop that a function runs, without changing the function.

Begin with `rewrite`: `checkpoint_loops` traces a function, finds its loops, chooses a plan for
each, and runs the jaxpr with these loops replaced.

- `rewrite`: `checkpoint_loops`, and changes that a function makes to Flax NNX modules.
- `explain`: the plan, the memory and the evaluations of every loop in a function.
- `certify`: how far a gradient is from the exact one, by forward mode.
- `find`: the loops in a jaxpr, at any depth, their sizes and replacements, and equations whose
  loops stay unchanged.
- `derivative`: the gradient of a program, and what its loops decide in it.
- `bounds`: the bounds of while loops, read from their conditions.
- `guards`: what Equinox adds to its loops, and ours do not need.
- `choice`: which loops to checkpoint, with which options.
- `batched`: while loops with a batched predicate, made by `jax.vmap`.
- `budget`: one memory budget for several loops, chosen where the program is differentiated.
- `share`: what loops take together, after or inside one another.
- `fit`: the largest budget with which a compiled program fits.

May import `loops`, `autodiff` and all rooms below them. No other room imports this one.
"""
