"""Tables and pictures, made from the files of results alone: nothing is measured here.

`table.py` says what a table is, and `pages.py` writes them into the README and `docs`. The other
files are the tables, by what they show, and `pictures.py`, which draws.
"""
