"""The pieces of `python -m benchmarks accelerator`: generators of records, told a
`runner.pieces.Setting`.

`gradients.py` times gradients, `programs.py` counts what programs do, and `tested.py` runs tests.
Each has its sizes: for an accelerator, reduced for a CPU, and tiny.
"""
