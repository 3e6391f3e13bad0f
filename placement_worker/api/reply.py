"""What a handler answers, before it is bytes."""

from collections.abc import Mapping
from http import HTTPStatus

from msgspec import Struct


class Reply(Struct, frozen=True):
    """A status, and a body if there is one.

    `body` is any value that msgspec encodes, or pieces, which are JSON already and go out as they are; None is no body
    and no content type. `is_fresh` says that the answer tells the state of this moment: from version 1.15 on it carries
    `cache-control: no-cache` and `last-modified`. Versions, request ids and the like are added by the frame.
    """

    status: HTTPStatus = HTTPStatus.OK
    body: object = None
    headers: Mapping[str, str] = {}
    is_fresh: bool = False
