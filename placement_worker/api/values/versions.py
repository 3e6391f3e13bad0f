"""The microversion of a request. The header is OpenStack's: `OpenStack-API-Version: placement 1.39`.

A header may name several services; the last entry for placement counts. A client that names no version for placement gets
the oldest one.
"""

import re
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from placement_worker.api.values.problems import ApiError, bad_request

SERVICE: Final = "placement"
HEADER: Final = "openstack-api-version"

# (major, minor), so that versions compare correctly.
Version = tuple[int, int]

OLDEST: Final[Version] = (1, 0)
NEWEST: Final[Version] = (1, 39)

# Placement reads signs, too. At most four digits: int() of a megabyte of digits is an attack.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,4}")


# Few clients, which send the same header again and again.
@lru_cache(maxsize=256)
def version_asked(header: str) -> Version:
    """The version that the header asks for. Raises ApiError: 400 if it cannot be parsed, 406 if it is not served."""
    word = _last_word(header)
    if word is None:
        return OLDEST
    if word == "latest":
        return NEWEST
    version = _read(word)
    if not OLDEST <= version <= NEWEST:
        oldest, newest = version_text(OLDEST), version_text(NEWEST)
        raise ApiError(
            HTTPStatus.NOT_ACCEPTABLE,
            f"Unacceptable version header: {word}; the oldest version is {oldest}, the newest {newest}",
            extra={"min_version": oldest, "max_version": newest},
        )
    return version


def version_text(version: Version) -> str:
    major, minor = version
    return f"{major}.{minor}"


def _last_word(header: str) -> str | None:
    for part in reversed(header.split(",")):
        match part.split(None, 1):
            case [service, word] if service.lower() == SERVICE:
                return word.strip()
    return None


def _read(word: str) -> Version:
    major, dot, minor = word.partition(".")
    if not (dot and _NUMBER.fullmatch(major) and _NUMBER.fullmatch(minor)):
        raise bad_request(f"invalid version string: {word}; it must be X.Y or latest")
    return int(major), int(minor)
