"""Every use of JAX outside its stable public API, and what differs between its versions.
`tests/support/jax_names.py` lists the names, and why no public one serves."""
