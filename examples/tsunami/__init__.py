"""Finding the source of a tsunami from tide gauges, by gradients through the whole simulation.

- `bathymetry`: the real sea floor around Vancouver Island, and the sizes of the grid cells.
- `model`: the shallow-water equations, one step at a time.
- `scenario`: the made-up source and the gauges.
- `inversion`: the unknown surface, the misfit, and the search.
- `measurement`: evaluations counted at run time, and the memory of compiled programs.
- `picture`: the figure.
- `job`: all of it in order; `python -m jax_revolve` calls `job.run`.
"""
