"""Random programs: bodies, loops, settings and transformations that nobody thought of."""
