"""Random programs: bodies, loops, settings and transformations that nobody thought of. Beside them
are the tests of the room `programs`."""
