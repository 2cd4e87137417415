"""One client's connection, cut off where it asks for nothing, takes nothing, or stays too long."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from smallvit.server.limits import Limits

DRAIN_SECONDS = 2.0
"""What the last responses may take beyond the time of a request, once the server stops."""


class Connection(H11Protocol):
    """uvicorn's, which alone would wait for requests, and for clients to read, for ever."""

    def __init__(self, limits: Limits, **state: Any) -> None:
        super().__init__(**state)
        self.limits = limits
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to watch it."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` as soon as anything waits
        self.loop.call_later(self.limits.head_seconds, self._close_if_silent, None)

    def pause_writing(self) -> None:
        """The client has to take what waits for it in the time of a request."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has taken everything."""
        super().resume_writing()
        self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._forget()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Lets the request that has begun get its response, if the client takes it in time."""
        super().shutdown()
        self.loop.call_later(self.limits.seconds + DRAIN_SECONDS, self.transport.abort)

    def _forget(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _close_if_silent(self, before: object) -> None:
        """Closes a connection that has been waiting for a request since the call before."""
        request, transport = self.cycle, self.transport
        if transport.is_closing():
            return
        waiting = request is None or request.response_complete
        if waiting and request is before:
            transport.close()
        else:
            last = request if waiting else self
            self.loop.call_later(self.limits.head_seconds, self._close_if_silent, last)
