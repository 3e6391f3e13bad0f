"""Forms that browsers send: read within limits, and only from pages of this dashboard."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request

FORM_BYTES_MAX = 16_384
FIELDS_MAX = 20
FORM_S_MAX = 10.0
FORM_TYPE = "application/x-www-form-urlencoded"
FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
AGAIN = "Open the page again, and send its form."


class FormRefused(Exception):  # noqa: N818 - named for what happened
    """A form that does not count. Nothing was done."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


async def form_of(request: Request) -> Mapping[str, str]:
    """The fields of the form. Raises FormRefused if it is of another site, too large, or no form."""
    check_origin(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise FormRefused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"A form is sent as {FORM_TYPE}, and not as {kind!r}."
        )
    try:
        async with asyncio.timeout(FORM_S_MAX):
            return fields_in(await _body(request))
    except TimeoutError:
        why = f"The form did not arrive within {FORM_S_MAX:.0f} s."
        raise FormRefused(HTTPStatus.REQUEST_TIMEOUT, why) from None
    except ClientDisconnect:
        raise FormRefused(HTTPStatus.BAD_REQUEST, "The form did not arrive whole.") from None


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            why = f"The form has more than {FORM_BYTES_MAX} bytes."
            raise FormRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
    return body


def fields_in(body: bytes) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
        )
    except ValueError as problem:
        raise FormRefused(HTTPStatus.BAD_REQUEST, f"The form cannot be read: {problem}.") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise FormRefused(HTTPStatus.BAD_REQUEST, "The form has a field twice.")
    return fields


def check_origin(request: Request) -> None:
    """Only pages of this dashboard may send forms. Browsers say which page it was in Origin, for every form.

    A proxy that ends TLS may not say so. A page of the same name by https is then one of this dashboard, too.
    """
    origin = request.headers.get("origin", "")
    name = request.headers.get("host", "")
    if origin not in (f"{request.url.scheme}://{name}", f"https://{name}"):
        told = origin or "none"
        raise FormRefused(
            HTTPStatus.FORBIDDEN,
            f"The form was sent by a page of another site (Origin: {told}), and this is {request.url.scheme}://{name}. "
            "A proxy before the dashboard must leave the header Host as it is.",
        )


def local_path(text: str) -> str:
    """This path on the dashboard; the first page if it would lead anywhere else."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return "/"
    is_plain = text.isascii() and text.isprintable() and "\\" not in text
    is_local = text.startswith("/") and not text.startswith("//") and not (parts.scheme or parts.netloc)
    return text if is_plain and is_local else "/"
