"""`smallvit watch`, and the same page beside a training."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from smallvit.cli.app import app, refusal


@app.command()
def watch(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="[RUNS]", help="A run folder, or one that holds run folders, at some depth."
        ),
    ] = Path("runs"),
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes any free one.")] = 8001,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Whether to open a browser, if any.")
    ] = True,
    until_closed: Annotated[bool, typer.Option("--until-closed", hidden=True)] = False,
) -> None:
    """Show running and finished runs on a local page that keeps itself up to date.

    It only reads, and only this machine reaches it. Stop it with Ctrl+C.
    """
    from smallvit.watching.running import has_browser
    from smallvit.watching.running import watch as run_server

    if not until_closed and not runs.is_dir():
        raise refusal(f"there is no folder {runs}: name the one that holds your runs")
    run_server(
        runs,
        port=port,
        browser=browser and has_browser(sys.stderr.isatty()),
        until_closed=sys.stdin.buffer if until_closed else None,
    )


@contextlib.contextmanager
def watched(runs: Path) -> Iterator[None]:
    """The page in a process of its own, so that the training is not kept waiting.

    It ends with this process, however that ends, as its input is then closed.
    """
    from smallvit.server.running import require_packages

    require_packages("--watch")
    words = [sys.executable, "-m", "smallvit", "watch", str(runs), "--port", "0", "--until-closed"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as server:
        try:
            yield
        finally:
            assert server.stdin is not None
            with contextlib.suppress(OSError):
                server.stdin.close()
