"""Find the source of a tsunami from tide gauges, by gradients through the whole simulation.

- `bathymetry`: the real sea floor around Vancouver Island, and the sizes of the grid cells.
- `model`: the shallow-water equations, one step at a time.
- `scenario`: the synthetic source and the gauges.
- `inversion`: the unknown surface, the misfit, and the search.
- `measurement`: evaluations counted at run time, and the memory of compiled programs.
- `picture`: the figure.
- `job`: the whole demonstration; `python -m jax_revolve` calls `job.run`.
"""
