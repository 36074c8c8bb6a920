"""The tape: what is kept of a step until it is transposed.

- `tape`: how the steps of a block are taped, and pulled back from their tape.
- `taped`: what is known of a taped step before it runs.
- `cut`: the fewest bytes from which the residuals of a step can be computed again, which are a
  `minimum_cut`.
- `weight_gradients`: cotangents of weights, added up over a block by one matrix product.
"""
