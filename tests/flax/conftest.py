"""Two virtual CPU devices for the tests of this folder; they must be asked for before any use."""

import jax

jax.config.update("jax_num_cpu_devices", 2)
