"""Refusals: the errors that handlers raise, and the codes by which clients tell them apart."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

# Clients branch on these codes, from version 1.23 on.
UNDEFINED: Final = "placement.undefined_code"
INVENTORY_IN_USE: Final = "placement.inventory.inuse"
CONCURRENT_UPDATE: Final = "placement.concurrent_update"
DUPLICATE_NAME: Final = "placement.duplicate_name"
PROVIDER_IN_USE: Final = "placement.resource_provider.inuse"
CANNOT_DELETE_PARENT: Final = "placement.resource_provider.cannot_delete_parent"
PROVIDER_NOT_FOUND: Final = "placement.resource_provider.not_found"
DUPLICATE_KEY: Final = "placement.query.duplicate_key"
BAD_VALUE: Final = "placement.query.bad_value"
MISSING_VALUE: Final = "placement.query.missing_value"
# Placement itself has no such code: its searches have no limit.
TOO_COSTLY: Final = "placement.query.too_costly"

# Details may quote what a client sent, which may be megabytes long.
DETAIL_CHARACTERS_MAX: Final = 4_000
_NONE: Final[Mapping[str, str]] = {}


class ApiError(Exception):
    """Ends a request with this status. Handlers raise it, and the steps before them; one place renders it.

    `detail` is for people and is sent as one line: what was wrong, which value, which numbers. `extra` goes into the
    error's body beside the usual keys.
    """

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        code: str = UNDEFINED,
        *,
        headers: Mapping[str, str] = _NONE,
        extra: Mapping[str, str] = _NONE,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = (
            detail if len(detail) <= DETAIL_CHARACTERS_MAX else f"{detail[:DETAIL_CHARACTERS_MAX]} ..."
        )
        self.code = code
        self.headers = headers
        self.extra = extra


def bad_request(detail: str, code: str = UNDEFINED) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, detail, code)


def not_found(detail: str) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, detail, UNDEFINED)


def conflict(detail: str, code: str = UNDEFINED) -> ApiError:
    return ApiError(HTTPStatus.CONFLICT, detail, code)
