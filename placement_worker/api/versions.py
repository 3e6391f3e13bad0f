"""Which microversion does a request speak? The header is OpenStack's: `OpenStack-API-Version: placement 1.39`.

A header may name several services; the last word about placement counts. Who says nothing about placement speaks the
oldest version.
"""

from functools import lru_cache
from typing import Final

SERVICE: Final = "placement"
HEADER: Final = "openstack-api-version"

# (major, minor), so that versions compare as they should.
Version = tuple[int, int]

OLDEST: Final[Version] = (1, 0)
NEWEST: Final[Version] = (1, 39)


class UnreadableVersionError(ValueError):
    """What is named as a version is none."""


class UnservedVersionError(ValueError):
    """A version that this server does not speak."""


# There are few clients, and each says the same again and again.
@lru_cache(maxsize=256)
def version_asked(header: str) -> Version:
    """The version that the header asks for. Raises one of the two above."""
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
        raise UnreadableVersionError(f"invalid version string: {word}; it is written X.Y, or latest")
    return int(major), int(minor)


def _is_number(text: str) -> bool:
    # Not more digits than any version will have: int() of a megabyte of digits is an attack.
    return text.isascii() and text.isdigit() and len(text) <= 4  # noqa: PLR2004  (that is the number)
