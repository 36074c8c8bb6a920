"""Time and memory of jax_revolve beside other ways to differentiate a long loop.

Each file here is a benchmark: its workloads, and who is compared on them. `workloads` are losses,
`contenders` are loops by name, `runner` compiles, compares and times them, and `report` makes every
table and picture from `results`. `pieces` is what `accelerator.py` runs. Begin with `scan.py`, then
`runner/comparison.py`.
"""
