"""Makes the shape checker known before smallvit is imported."""

import tests.shapes  # noqa: F401
