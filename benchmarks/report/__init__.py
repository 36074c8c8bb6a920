"""Tables and pictures, made from the files of results alone: nothing is measured here.

`tables.py` says which tables there are; `pages.py` writes them into the README and `docs`.
"""
