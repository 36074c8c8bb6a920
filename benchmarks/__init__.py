"""Time and memory of jax_revolve beside other ways to differentiate a long loop.

Each file here is a benchmark: its workloads, who is compared on them, and the tables of what is
found. `workloads` are losses, `contenders` are loops by name, `runner` compiles, compares and times
them and writes `results`, and `report` makes the tables and pictures. Begin with `scan.py`, then
`runner/comparison.py`. `__main__.py` says what each benchmark is about.
"""

BENCHMARKS = (
    *(
        "scan",
        "while_loop",
        "reversible",
        "drift",
        "certificates",
        "histories",
        "budget",
        "fronts",
        "plans",
        "stencils",
        "small_steps",
        "examples",
        "nests",
        "storage",
        "layers",
    ),
    *("diffrax_adjoints", "compiling", "growth", "progress", "fit", "host_scan", "cpu_pieces"),
)
BY_NAME = ("third_party", "tpu_programs", "gpu_programs")
"""They need packages that the project does not depend on."""
