"""The bytes of an image out of a request, never more of them than allowed."""

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from smallvit.server.limits import RefusedError, megabytes

FIELD = "image"
"""Of a form."""

_AROUND = 16_384
"""Bytes that a form may have around the file."""


async def read_upload(request: Request, limit: int) -> bytes:
    """The image file that a request holds, as its body or as a field of a form.

    Args:
        request: Its body is read.
        limit: Of the file, in bytes; counted while it comes, whatever the request says of itself.

    Raises:
        RefusedError: There is none, or it is too large.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    form = kind == "multipart/form-data"
    if not form and not kind.startswith("image/"):
        raise RefusedError(
            415,
            f"Expected an image, as the body with a Content-Type such as image/jpeg or as the "
            f"field {FIELD!r} of a form; the Content-Type is {kind[:80] or 'missing'!r}.",
        )
    most = limit + _AROUND if form else limit
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise _too_large(limit)
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > most:
            raise _too_large(limit)
        return message

    bounded = Request(request.scope, counted)
    try:
        data = await (_from_form(bounded) if form else bounded.body())
    except ClientDisconnect:
        raise RefusedError(400, "The upload broke off.") from None
    if len(data) > limit:
        raise _too_large(limit)
    if not data:
        raise RefusedError(400, "The image is empty: it has no bytes.")
    return data


async def _from_form(request: Request) -> bytes:
    try:
        async with request.form(max_files=1, max_fields=4, max_part_size=_AROUND) as form:
            file = form.get(FIELD)
            if isinstance(file, UploadFile):
                return await file.read()
    except (HTTPException, MultiPartException):
        raise RefusedError(
            400, f"The form cannot be read: expected one file, as the field {FIELD!r}."
        ) from None
    raise RefusedError(400, f"Expected a file as the field {FIELD!r}; the form has none.")


def _too_large(limit: int) -> RefusedError:
    return RefusedError(
        413, f"The image has more than {megabytes(limit)}: save it smaller, then try again."
    )
