"""The loop as data, and the three ways to run it.

`plain` is lax's own loop; `nested` is made of scans inside scans, and JAX transforms it by itself;
`slots` stores checkpoints in one buffer and follows the optimal schedule. `primitive` picks one of
them by the transformation that JAX applies.
"""
