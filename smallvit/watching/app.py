"""The application: a page, what it shows as JSON, and reports; nothing of it writes."""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse

from smallvit.experiments import PAGE
from smallvit.pages import code_hash
from smallvit.reporting.report import REPORT, page_code
from smallvit.server.app import add_refusals, page_app
from smallvit.server.limits import RefusedError
from smallvit.server.middleware import Metrics, Middleware
from smallvit.text import shown
from smallvit.watching.folders import Folders, Listing
from smallvit.watching.machine import Machine, Use
from smallvit.watching.reading import read_plain

_FRESH = 1.0  # seconds for which a listing is kept, however many pages ask for it
_PAGE_BYTES = 64_000_000
_ALLOWED = {"run": "the name of a run", "set": "the name of a set of runs"}


class Watcher:
    """What pages are shown: read once a second at most.

    Args:
        root: The folder of the runs.
        machine: Whose use is shown.
        clock: Seconds; only their differences count.
        now: Seconds since 1970.
    """

    def __init__(
        self,
        root: Path,
        machine: Machine | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.root, self.folders = root, Folders(root)
        self._machine, self._clock, self._now = machine or Machine(), clock, now
        self._lock = threading.Lock()
        self._read: tuple[float, Listing, Use] | None = None

    def state(self) -> tuple[Listing, Use]:
        """All runs, and how busy the machine is."""
        with self._lock:
            if self._read is None or self._clock() - self._read[0] >= _FRESH:
                listing = self.folders.listing(self._now())
                self._read = self._clock(), listing, self._machine.use()
            return self._read[1:]

    def curves(self, name: str) -> dict[str, Any]:
        """Those of one run."""
        folder = self.folder(name)
        with self._lock:
            return self.folders.curves(folder)

    def folder(self, name: str) -> Path:
        """Of a run or set that is listed: no other folder is ever opened.

        Raises:
            RefusedError: There is none of that name.
        """
        folders = self.state()[0].folders
        if name not in folders:
            raise RefusedError(404, f"There is no run {name[:200]!r} here.")
        return folders[name]

    def page(self, name: str, file: str) -> str:
        """A page that lies in a folder.

        Raises:
            RefusedError: There is none.
        """
        try:
            data = read_plain(self.folder(name) / file, _PAGE_BYTES)
        except ValueError:
            raise RefusedError(404, f"{name[:200]!r} has no page that can be shown.") from None
        return data.decode("utf-8", "replace")


def make_app(watcher: Watcher, hosts: frozenset[str] | None) -> FastAPI:
    """The application; see `smallvit.server.hosts.own_hosts` for the names."""
    app = page_app(
        "smallvit.watching",
        {"root": shown(str(watcher.root.resolve()))},
        "data:",
        title="smallvit watch",
        openapi_url=None,
    )
    app.add_middleware(
        Middleware,
        metrics=Metrics(),
        hosts=hosts,
        otherwise="open it on its own machine, as http://localhost with its port",
    )
    add_refusals(app, "open / in a browser", _ALLOWED)

    # Functions that wait for a disk run in threads of their own.
    @app.get("/runs")
    def runs() -> JSONResponse:
        """Everything that changes."""
        listing, use = watcher.state()
        return JSONResponse(
            {
                "runs": [asdict(run) for run in listing.runs.values()],
                "sets": [asdict(each) for each in listing.sets.values()],
                "left_out": listing.left_out,
                "machine": asdict(use),
            }
        )

    @app.get("/curves")
    def curves(run: str) -> JSONResponse:
        """The curves of one run."""
        return JSONResponse(watcher.curves(run))

    @app.get("/report", response_class=HTMLResponse)
    def report(run: str) -> HTMLResponse:
        """The report of one run."""
        return _untrusted(watcher.page(run, REPORT))

    @app.get("/page", response_class=HTMLResponse)
    def set_page(set: str) -> HTMLResponse:
        """The page of a set of runs."""
        return _untrusted(watcher.page(set, PAGE))

    return app


def _untrusted(page: str) -> HTMLResponse:
    """A page from a folder that may be a stranger's.

    It gets no origin, so that it cannot ask this server anything, loads nothing, and runs no script
    but that of our own reports.
    """
    _, script = page_code()
    policy = (
        "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src {code_hash(script)}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})
