"""What happens around every request: headers, counts, and an end to uploads nobody reads."""

import asyncio
import logging
import time

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smallvit.server.metrics import Metrics

logger = logging.getLogger(__name__)

PATHS = ("/", "/predict", "/healthz", "/metrics", "/openapi.json")
"""Others are counted as one, so that strangers cannot fill the metrics."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every answer that does not say otherwise."""

_LINGER_SECONDS, _LINGER_BYTES = 1.0, 20_000_000


class Around:
    """An ASGI application inside what every request gets."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        body = _Body(scope, receive)
        began = False

        async def send_on(message: Message) -> None:
            nonlocal status, began
            if message["type"] == "http.response.start":
                began, status = True, message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not await body.is_over():
                    headers["Connection"] = "close"
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, body.receive, send_on)
        except Exception:  # pylint: disable=broad-exception-caught
            logger.exception("a request failed")
            if began:
                raise
            sentence = "The server failed at this request; its log says why."
            await JSONResponse({"error": sentence}, 500)(scope, body.receive, send_on)
        finally:
            self.metrics.in_flight -= 1
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.add(path, status, time.perf_counter() - started)


class _Body:
    """The body of a request: whether all of it came."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        names = {name.lower(): value for name, value in scope["headers"]}
        length = names.get(b"content-length", b"0")
        self._over = length == b"0" and b"transfer-encoding" not in names
        self._held = names.get(b"expect", b"").lower() == b"100-continue"

    async def receive(self) -> Message:
        """The next part."""
        self._held = False
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._over = True
        return message

    async def is_over(self) -> bool:
        """Whether the connection can be used again.

        An answer in the middle of an upload may be lost to a client that only sends, and closing
        would cut it off. So a little of what still comes is read, and thrown away. A client that
        asked before sending is not told to.
        """
        if self._held:
            return self._over
        left = _LINGER_BYTES
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self._over and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass
        return self._over
