"""What every request passes: security headers, metrics, and limits on what is uploaded."""

import asyncio
import logging
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smallvit.server.hosts import host_name
from smallvit.server.limits import RefusedError, megabytes

logger = logging.getLogger(__name__)

FIELD = "image"
"""The field of a form that holds the image file."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every response that does not set its own."""

_PATHS = ("/", "/predict", "/healthz", "/metrics", "/openapi.json")
"""All other paths are counted as one, so that strangers cannot fill the metrics."""

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the histogram, in seconds."""

_FORM_BYTES = 16_384
"""What a form may have around the file."""

_LINGER_SECONDS, _LINGER_BYTES = 1.0, 20_000_000


class Metrics:
    """Prometheus metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter(
            "smallvit_requests", "Answered requests.", ("path", "status"), registry=own
        )
        self.predict_seconds = Histogram(
            "smallvit_predict_seconds",
            "Time from the head of a request for a prediction to its response.",
            registry=own,
            buckets=_BUCKETS,
        )
        self.in_flight = Gauge(
            "smallvit_requests_in_flight", "Requests without a response.", registry=own
        )
        self.images = Counter("smallvit_images", "Images predicted.", registry=own)


class Middleware:
    """An ASGI application inside what every request passes.

    Args:
        app: The application.
        metrics: Where requests are counted.
        hosts: The names that it answers to; None for every name.
        otherwise: What to do about another name.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        hosts: frozenset[str] | None = None,
        otherwise: str = "if it is a name of this server, start it with --allow-host and that name",
    ) -> None:
        self.app, self.metrics, self.hosts, self.otherwise = app, metrics, hosts, otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, responding = time.perf_counter(), 500, False
        body = _Body(scope, receive)

        async def send_on(message: Message) -> None:
            nonlocal status, responding
            if message["type"] == "http.response.start":
                responding, status = True, message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if not await body.read_rest():
                    headers["Connection"] = "close"
            await send(message)

        self.metrics.in_flight.inc()
        try:
            app = self._misdirected(scope) or self.app
            await app(scope, body.receive, send_on)
        except Exception:  # pylint: disable=broad-exception-caught
            logger.exception("a request failed")
            if responding:
                raise
            sentence = "The server failed at this request; its log says why."
            await JSONResponse({"error": sentence}, 500)(scope, body.receive, send_on)
        finally:
            path = scope["path"] if scope["path"] in _PATHS else "other"
            self.metrics.in_flight.dec()
            self.metrics.requests.labels(path, status).inc()
            if path == "/predict":
                self.metrics.predict_seconds.observe(time.perf_counter() - started)

    def _misdirected(self, scope: Scope) -> ASGIApp | None:
        """The refusal of a request for another host."""
        headers = dict(scope["headers"])
        if self.hosts is None or b"host" not in headers:  # as in HTTP/1.0, and never in a browser
            return None
        name = host_name(headers[b"host"].decode("latin-1"))
        if name in self.hosts:
            return None
        sentence = f"This server does not answer for the host {name[:80]!r}: {self.otherwise}."
        return JSONResponse({"error": sentence}, 421)


class _Body:
    """The body of a request, and whether all of it has been received."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        headers = {name.lower(): value for name, value in scope["headers"]}
        empty = headers.get(b"content-length", b"0") == b"0"
        self._complete = empty and b"transfer-encoding" not in headers
        self._held_back = headers.get(b"expect", b"").lower() == b"100-continue"

    async def receive(self) -> Message:
        """The next part."""
        self._held_back = False
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._complete = True
        return message

    async def read_rest(self) -> bool:
        """Reads a little of what still comes; whether the connection can be used again.

        A response in the middle of an upload may be lost to a client that only sends, and closing
        the connection would cut it off. A client that waits for "100 Continue" sends nothing.
        """
        left = 0 if self._held_back else _LINGER_BYTES
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self._complete and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass
        return self._complete


async def read_upload(request: Request, limit: int) -> bytes:
    """The image file of a request, which is its body or a field of a form.

    Args:
        request: Its body is read.
        limit: Bytes of the file, counted as they come, whatever the request says of itself.

    Raises:
        RefusedError: There is no file, or it is too large.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    form = kind == "multipart/form-data"
    if not form and not kind.startswith("image/"):
        raise RefusedError(
            415,
            f"Expected an image, as the body with a Content-Type such as image/jpeg or as the "
            f"field {FIELD!r} of a form; the Content-Type is {kind[:80] or 'missing'!r}.",
        )
    too_large = RefusedError(
        413, f"The image has more than {megabytes(limit)}: save it smaller, then try again."
    )
    most = limit + _FORM_BYTES if form else limit
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise too_large
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > most:
            raise too_large
        return message

    bounded = Request(request.scope, counted)
    try:
        data = await (_file_of_form(bounded) if form else bounded.body())
    except ClientDisconnect:
        raise RefusedError(400, "The upload broke off.") from None
    if len(data) > limit:
        raise too_large
    if not data:
        raise RefusedError(400, "The image is empty: it has no bytes.")
    return data


async def _file_of_form(request: Request) -> bytes:
    try:
        async with request.form(max_files=1, max_fields=4, max_part_size=_FORM_BYTES) as form:
            file = form.get(FIELD)
            if isinstance(file, UploadFile):
                return await file.read()
    except (HTTPException, MultiPartException):
        raise RefusedError(
            400, f"The form cannot be read: expected one file, as the field {FIELD!r}."
        ) from None
    raise RefusedError(400, f"Expected a file as the field {FIELD!r}; the form has none.")
