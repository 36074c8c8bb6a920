"""Plans to look at: a table of all sensible plans, one schedule as text, and both as pictures.

`report` holds the table, `show` draws one schedule, and `parts` takes that apart as it runs.
"""
