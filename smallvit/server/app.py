"""The application: its addresses, and every refusal as a sentence."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

import smallvit
from smallvit.inference import Predictor
from smallvit.server.answers import answer
from smallvit.server.limits import Limits, RefusedError
from smallvit.server.metrics import CONTENT_TYPE, Metrics
from smallvit.server.middleware import Around
from smallvit.server.page import make_page
from smallvit.server.queue import Desk
from smallvit.server.uploads import FIELD, read_upload

_IMAGE = {"type": "string", "format": "binary"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {"type": "object", "required": [FIELD], "properties": {FIELD: _IMAGE}}
            },
            "image/*": {"schema": _IMAGE},
        },
    }
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "There is no image in the request"},
    408: {"description": "The upload took too long"},
    413: {"description": "The image has too many bytes or pixels"},
    415: {"description": "It is no image"},
    422: {"description": "The image is damaged, or a parameter is wrong"},
    503: {"description": "The model is busy; Retry-After says when to try again"},
    504: {"description": "The model took too long"},
}


class Service:
    """A model and what guards it."""

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self.predictor, self.limits = predictor, limits
        self.metrics, self.desk = Metrics(), Desk(limits.queue)
        self._open = 0

    async def predict(self, request: Request, top: int, explained: bool) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            RefusedError: It holds no image that can be read, or comes at a bad time.
        """
        started, limits = time.monotonic(), self.limits
        if self._open >= limits.requests:
            raise RefusedError(503, "The server has enough to do: try again in a moment.", 1)
        self._open += 1
        try:
            try:
                async with asyncio.timeout(limits.seconds):
                    data = await read_upload(request, limits.upload)
            except TimeoutError:
                raise RefusedError(
                    408, f"The upload took longer than {limits.seconds:g} seconds."
                ) from None
            job = partial(
                answer, self.predictor, data, top=top, explained=explained, pixels=limits.pixels
            )
            found = await self.desk.ask(job, started + limits.seconds - time.monotonic())
        finally:
            self._open -= 1
        self.metrics.images += 1
        return found


def make_app(predictor: Predictor, limits: Limits | None = None) -> FastAPI:
    """The server as an ASGI application."""
    service = Service(predictor, limits or Limits())
    page, policy = make_page(predictor.card, service.limits)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.desk.close()

    # FastAPI's pages of documentation would load scripts from elsewhere.
    app = FastAPI(
        title="smallvit",
        version=smallvit.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    app.add_middleware(Around, metrics=service.metrics)
    _add_refusals(app)

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
        """Counts for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    return app


def _add_refusals(app: FastAPI) -> None:
    """Makes every error an object with one sentence."""

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> JSONResponse:
        headers = {} if error.retry is None else {"Retry-After": str(error.retry)}
        return JSONResponse({"error": error.sentence}, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name, given = first["loc"][-1], str(first.get("input"))[:80]
        allowed = {"top": "a whole number from 1", "explain": "true or false"}.get(str(name), "")
        return JSONResponse({"error": f"{name} is {given!r}: expected is {allowed}."}, 422)

    @app.exception_handler(HTTPException)
    async def wrong(request: Request, error: HTTPException) -> JSONResponse:
        sentence = {
            404: "There is nothing at this address: POST an image to /predict, or open / in a "
            "browser.",
            405: f"{request.method[:20]} is not understood at this address.",
        }.get(error.status_code, f"{error.detail}.")
        return JSONResponse({"error": sentence}, error.status_code, error.headers)
