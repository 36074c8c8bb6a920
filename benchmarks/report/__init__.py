"""Tables and pictures, made from the files of results alone: nothing is measured here.

`table.py` says what a table is, the files named by what they show are all of them, and `pages.py` writes
them into the README and `docs`. `pictures.py` draws.
"""
