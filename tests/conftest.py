"""Makes the shape checker known before smallvit is imported, and JAX stay on the CPU."""

import os

import tests.shapes  # noqa: F401

# On a GPU JAX multiplies float32 in a coarser format, and the port is compared to 1e-5.
os.environ["JAX_PLATFORMS"] = "cpu"
# A command would compute with fewer threads beside a busy process: its last bits would differ.
os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
