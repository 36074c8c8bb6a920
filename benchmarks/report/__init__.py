"""Tables and pictures, made from the files of results alone: nothing is measured here.

`results.py` reads a file, `table.py` says what a table is, `pages.py` writes those that the
benchmarks declare into the README and `docs`, and `pictures.py` draws.
"""
