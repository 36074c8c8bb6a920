"""Whole programs: every loop that a function runs, checkpointed without a change to it.

Begin with `rewrite`: `checkpoint_loops` traces a function, finds its loops, chooses a plan for
each, and runs its jaxpr with other equations in their places.

- `find`: the loops in a jaxpr, whatever they are in; `location`: where each is; `replace`: putting
  checkpointed ones in their places.
- `choice`: which of them are checkpointed, and how.
- `nests`: which loop is in which. `share`: one amount of memory divided among all of them.
- `report`: what `explain_loops` returns.

May import `loops`, `autodiff` and everything below. Nothing stands on it.
"""
