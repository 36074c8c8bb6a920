"""The tape: what is kept of a step until it is transposed.

- `tape`: what is known of a taped step before it runs, how the steps of a block are taped, and how
  they are pulled back from their tape.
- `cut`: the fewest bytes from which the residuals of a step can be computed again.
- `weight_gradients`: cotangents of weights, added up over a block by one matrix product.
"""
