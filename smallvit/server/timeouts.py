"""Connections that say nothing, or say it too slowly, are closed."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD_SECONDS = 10.0


class Impatient(H11Protocol):
    """HTTP as uvicorn speaks it, with an end to waiting for the head of a request.

    Bodies and answers have their own limit, in the application.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Waits no more once a request is there."""
        if self._waiting is None and self._idle:
            self._wait()
        super().data_received(data)
        if not self._idle:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._stop()
        super().connection_lost(exc)

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(_HEAD_SECONDS, self._give_up)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self._idle and not self.transport.is_closing():
            self.transport.close()
