"""Every use of JAX outside its stable public API. `names` lists what that is, and why."""
