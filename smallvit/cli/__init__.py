"""The command line: thin; it parses, calls and prints. A file a group of commands."""

import os
import warnings

# Each module adds its commands to the application, in this order.
from smallvit.cli import (  # noqa: F401  # isort: skip
    training,
    data,
    evaluating,
    experiments,
    predicting,
    watching,
    info,
)
from smallvit.cli.app import app, refusal
from smallvit.cli.terminal import adapt_streams
from smallvit.cli.threads import wait_briefly

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line; what the user got wrong is a sentence, not a traceback."""
    wait_briefly(os.environ)
    adapt_streams()
    warnings.filterwarnings("ignore", "Image size .* exceeds limit")  # Pillow's; ours is a sentence
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(refusal(str(error)).exit_code) from error
