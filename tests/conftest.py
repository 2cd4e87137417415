"""Makes the shape checker known before smallvit is imported, and JAX stay on the CPU."""

import os

import tests.shapes  # noqa: F401

# On a GPU JAX multiplies float32 in a coarser format, and the port is compared to 1e-5.
os.environ["JAX_PLATFORMS"] = "cpu"
