"""The loops within other libraries' ways of working. Each module is imported when it is asked for.

`equinox` has the loops for carries with leaves that are not arrays; `diffrax` the adjoint for
`diffrax.diffeqsolve`.
"""
