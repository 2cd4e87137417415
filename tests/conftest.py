"""Makes the shape checker known before smallvit is imported; JAX on the CPU, threads as usual."""

import os

import tests.shapes  # noqa: F401

# On a GPU JAX multiplies float32 in a coarser format, and the port is compared to 1e-5.
os.environ["JAX_PLATFORMS"] = "cpu"
# A command would compute with fewer threads beside a busy process: its last bits would differ.
_AFFINITY = getattr(os, "sched_getaffinity", None)
_CORES = len(_AFFINITY(0)) if _AFFINITY else os.cpu_count()
os.environ.setdefault("OMP_NUM_THREADS", str(_CORES))
