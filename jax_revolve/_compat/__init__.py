"""Every use of JAX outside its stable public API, and what differs between its versions. `names`
lists the names, and why no public one serves."""
