"""The tape: the residuals of steps, kept until the steps are transposed.

- `tape`: taping the steps of a block, and pulling cotangents back through them.
- `layout`: where a tape has the kept values of its steps.
- `cut`: the fewest bytes from which the residuals of a step can be recomputed.
- `weight_gradients`: the cotangents of weights, summed over a block by one matrix product.
"""
