"""The microversion of a request. The header is OpenStack's: `OpenStack-API-Version: placement 1.39`.

A header may name several services; the last entry for placement counts. A client that names no version for placement gets
the oldest one.
"""

from functools import lru_cache
from typing import Final

SERVICE: Final = "placement"
HEADER: Final = "openstack-api-version"

# (major, minor), so that versions compare correctly.
Version = tuple[int, int]

OLDEST: Final[Version] = (1, 0)
NEWEST: Final[Version] = (1, 39)


class UnreadableVersionError(ValueError):
    """The header has a version that cannot be parsed."""


class UnservedVersionError(ValueError):
    """A version that this server does not support."""


# Few clients, which send the same header again and again.
@lru_cache(maxsize=256)
def version_asked(header: str) -> Version:
    """The version that the header asks for. Raises one of the two errors above."""
    word = _last_word(header)
    if word is None:
        return OLDEST
    if word == "latest":
        return NEWEST
    version = _read(word)
    if not OLDEST <= version <= NEWEST:
        raise UnservedVersionError(
            f"Unacceptable version header: {word}; the oldest version is {version_text(OLDEST)}, the newest {version_text(NEWEST)}"
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
    if not (dot and _is_number(major) and _is_number(minor)):
        raise UnreadableVersionError(f"invalid version string: {word}; it must be X.Y or latest")
    return int(major), int(minor)


def _is_number(text: str) -> bool:
    # At most four digits: int() of a megabyte of digits is an attack.
    return text.isascii() and text.isdigit() and len(text) <= 4  # noqa: PLR2004  (that is the number)
