"""The names under which contenders are recorded, and found again by the report."""

JAX_REVOLVE = "jax_revolve"
EQUINOX = "equinox checkpointed"

LAX_SCAN = "lax.scan"
REMAT = "lax.scan(checkpoint)"
NESTED = "nested remat scan"
SAVES_PRODUCTS = "lax.scan(checkpoint, products saved)"
TAPED_WHOLE = "jax_revolve, taped whole"

EQUINOX_BOUNDED = "equinox bounded"
MASKED = "masked lax.scan"

SINGLE_STEPS = "pure Revolve"

ON_DEVICE = "jax_revolve, checkpoints on the device"
PLAIN_LAYERS = "plain"

FORWARD = "ForwardMode"
DIRECT = "DirectAdjoint"
RECURSIVE = "RecursiveCheckpointAdjoint"
BACKSOLVE = "BacksolveAdjoint"

JAX_GRAD = "jax.grad"
CHECKPOINT_LOOPS = "checkpoint_loops"
WITHIN_BUDGET = "checkpoint_loops(memory=)"

BARE_LOOP = "compiled step in a bare loop"
HOST_SCAN = "host_scan"
