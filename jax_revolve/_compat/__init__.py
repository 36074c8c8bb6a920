"""Every use of JAX outside its stable public API, and every difference between its versions.
`tests/support/jax_names.py` lists the names, and why no public one serves."""
