"""A handler's reply, before it is rendered."""

from collections.abc import Mapping
from http import HTTPStatus

from msgspec import Struct


class Reply(Struct, frozen=True):
    """A status, and a body if there is one.

    `body` is any value that msgspec can encode; `Pieces` are JSON already and are sent as they are; None means no body and
    no content type. `is_fresh` says that the answer is the state of this moment: from version 1.15 on it has
    `cache-control: no-cache` and `last-modified`. The application adds versions, request ids and the like.
    """

    status: HTTPStatus = HTTPStatus.OK
    body: object = None
    headers: Mapping[str, str] = {}
    is_fresh: bool = False
