"""The command line: thin; it parses, calls and prints. A file a group of commands."""

# Each module adds its commands to the application, in this order.
from smallvit.cli import (  # noqa: F401  # isort: skip
    training,
    data,
    evaluating,
    reporting,
    explaining,
    predicting,
    exporting,
    serving,
    models,
    info,
)
from smallvit.cli.app import app, refusal
from smallvit.cli.terminal import adapt_streams

__all__ = ["app", "main"]


def main() -> None:
    """Runs the command line; what the user got wrong is a sentence, not a traceback."""
    adapt_streams()
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(refusal(str(error)).exit_code) from error
