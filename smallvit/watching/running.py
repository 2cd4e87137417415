"""`watch`: the page's server, and the browser that opens it where there is one."""

import logging
import os
import sys
import threading
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from smallvit.arguments import Port, checked
from smallvit.server.hosts import own_hosts
from smallvit.server.limits import Limits
from smallvit.server.running import listen, make_server, require_packages, run, url_of
from smallvit.text import shown

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
"""No other machine reaches it."""


@checked
def watch(
    runs: str | os.PathLike[str] = "runs",
    *,
    port: Port = 8001,
    browser: bool = False,
    until_closed: IO[bytes] | None = None,
) -> None:
    """Shows runs on a page that keeps itself up to date, until it is told to stop.

    It only reads, and only this machine reaches it.

    Args:
        runs: A run folder, or one that holds run folders, at some depth.
        port: 0 takes any that is free; the log says which.
        browser: Whether to open the page.
        until_closed: Where this ends, so does the server.

    Raises:
        ValueError: There is no such port.
        OSError: The port is taken.
        ImportError: The packages of the extra "serve" are not installed.
    """
    require_packages("watching")
    from smallvit.watching.app import Watcher, make_app

    listener = listen(HOST, port)
    app = make_app(Watcher(Path(runs)), own_hosts(HOST, listener.getsockname()[0], ()))
    server = make_server(app, Limits())
    address = url_of(listener)
    logger.info("watching %s: %s", shown(str(runs)), address)
    if browser:
        webbrowser.open(address)
    if until_closed is not None:

        def wait() -> None:
            while until_closed.read(1024):
                continue
            server.should_exit = True

        threading.Thread(target=wait, daemon=True).start()
    run(server, listener)


def has_browser(
    terminal: bool, environment: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> bool:
    """Whether a person sits here who has a screen.

    Args:
        terminal: Whether output goes to a terminal.
        environment: Of the process.
        platform: As `sys.platform` names it.
    """
    if not terminal or environment.get("SSH_CONNECTION"):
        return False
    if platform in ("darwin", "win32"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))
