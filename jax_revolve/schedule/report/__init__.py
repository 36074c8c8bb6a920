"""Plans to look at: a table of all sensible plans, one schedule as text, and both as pictures.

`report` compares all plans, in a `table` or a picture; `show` draws one schedule, and `parts` takes
that apart as it runs.
"""
