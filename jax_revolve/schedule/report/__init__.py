"""Plans as tables, as text and as pictures.

- `report`: all plans that are worth considering, in a table or a picture.
- `measured`: measured times and bytes of plans, for `report`.
- `show`: one schedule, as text or as a picture.
- `table`: columns of text.
"""
