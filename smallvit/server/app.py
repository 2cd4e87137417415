"""The application: its addresses, its page, and every refusal as a sentence."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException

import smallvit
from smallvit.inference import Predictor
from smallvit.pages import content_security
from smallvit.server.limits import Limits, ModelQueue, RefusedError, megabytes, timed_out
from smallvit.server.middleware import FIELD, Metrics, Middleware, read_upload
from smallvit.server.predictions import predict_file

Timeout = Callable[[float], asyncio.Timeout]
"""From seconds to the block that may take so long."""

_LISTED = 500
"""Classes that the page lists."""

_IMAGE = {"type": "string", "format": "binary"}
_FORM = {"type": "object", "required": [FIELD], "properties": {FIELD: _IMAGE}}
_CONTENT = {"multipart/form-data": {"schema": _FORM}, "image/*": {"schema": _IMAGE}}
_BODY = {"requestBody": {"required": True, "content": _CONTENT}}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "There is no image in the request"},
    408: {"description": "The upload took too long"},
    413: {"description": "The image has too many bytes or pixels"},
    415: {"description": "It is not an image"},
    422: {"description": "The image is damaged, or a parameter is wrong"},
    503: {"description": "The model is busy; Retry-After says when to try again"},
    504: {"description": "The model took too long"},
}
_ALLOWED = {"top": "a whole number from 1", "explain": "true or false"}


class Service:
    """A model behind its limits.

    Args:
        predictor: The model.
        limits: What one request may cost.
        timeout: How the time of a request is measured.
    """

    def __init__(self, predictor: Predictor, limits: Limits, timeout: Timeout) -> None:
        self.predictor, self.limits = predictor, limits
        self.metrics, self.queue = Metrics(), ModelQueue(limits.queue)
        self._timeout, self._free = timeout, limits.requests

    async def predict(self, request: Request, top: int, explain: bool) -> dict[str, Any]:
        """The predictions for the image of a request.

        Raises:
            RefusedError: It holds no image that can be read, or there is no time for it.
        """
        if not self._free:
            raise RefusedError(503, "The server has enough to do: try again in a moment.", 1)
        limits, timeout = self.limits, self._timeout(self.limits.seconds)
        job: Future[dict[str, Any]] | None = None
        self._free -= 1
        try:
            async with timeout:
                data = await read_upload(request, limits.upload)
                call = partial(predict_file, top=top, explain=explain, pixels=limits.pixels)
                job = self.queue.submit(partial(call, self.predictor, data))
                predictions = await asyncio.wrap_future(job)
        except TimeoutError:
            if timeout.expired():
                raise timed_out(job, limits.seconds) from None
            raise
        finally:
            self._free += 1
        self.metrics.images.inc()
        return predictions


def make_app(
    predictor: Predictor,
    limits: Limits,
    timeout: Timeout = asyncio.timeout,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """The server as an ASGI application; see `Service`, and `own_hosts` for the names."""
    service = Service(predictor, limits, timeout)
    shown = {
        "model": predictor.card.model.get("name") or "model",
        "classes": predictor.classes,
        "listed": _LISTED,
        "upload": limits.upload,
        "largest": megabytes(limits.upload),
    }

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.queue.close()

    app = page_app("smallvit.server", shown, "data: blob:", title="smallvit", lifespan=lifespan)
    app.add_middleware(Middleware, metrics=service.metrics, hosts=hosts)
    add_refusals(app, "POST an image to /predict, or open / in a browser", _ALLOWED)

    @app.post("/predict", responses=_REFUSALS, openapi_extra=_BODY)
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, description="How many classes to name.")] = 5,
        explain: Annotated[bool, Query(description="Whether to add the attention map.")] = False,
    ) -> JSONResponse:
        """The classes of an image with calibrated probabilities, the most probable first."""
        return JSONResponse(await service.predict(request, top, explain))

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        """Whether the server answers, and with which model."""
        name = predictor.card.model.get("name")
        return JSONResponse({"status": "ok", "model": name, "classes": len(predictor.classes)})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        text = generate_latest(service.metrics.registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def page_app(room: str, values: Mapping[str, Any], images: str, **options: Any) -> FastAPI:
    """An application with a page of ours at /, which runs its own style and script alone.

    Args:
        room: The package whose folder files/ holds the page.
        values: Those of the page.
        images: Where the page may take images from, as a Content-Security-Policy says it.
        options: FastAPI's.
    """
    html, style, script = (
        (files(room) / "files" / name).read_text(encoding="utf-8")
        for name in ("page.html", "style.css", "script.js")
    )
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(html)
    page = template.render(values, style=Markup(style), script=Markup(script))
    more = (f"img-src {images}", "connect-src 'self'", "frame-ancestors 'none'")
    policy = content_security(style, script, *more)
    # FastAPI's pages of documentation would load scripts from elsewhere.
    off: dict[str, Any] = {"docs_url": None, "redoc_url": None, "redirect_slashes": False}
    app = FastAPI(version=smallvit.__version__, **off, **options)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    return app


def add_refusals(app: FastAPI, instead: str, allowed: Mapping[str, str]) -> None:
    """Makes every error an object with one sentence.

    Args:
        app: The application.
        instead: What to do where there is nothing at an address.
        allowed: What parameters may be, by their names.
    """

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> JSONResponse:
        headers = {} if error.retry is None else {"Retry-After": str(error.retry)}
        return JSONResponse({"error": error.sentence}, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name, value = str(first["loc"][-1]), str(first.get("input"))[:80]
        expected = allowed.get(name, "something else")
        return JSONResponse({"error": f"{name} is {value!r}: expected is {expected}."}, 422)

    @app.exception_handler(HTTPException)
    async def wrong(request: Request, error: HTTPException) -> JSONResponse:
        sentence = {
            404: f"There is nothing at this address: {instead}.",
            405: f"{request.method[:20]} is not allowed at this address.",
        }.get(error.status_code, f"{error.detail}.")
        return JSONResponse({"error": sentence}, error.status_code, error.headers)
