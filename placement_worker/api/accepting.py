"""Does a client take this media type? By the Accept header, as far as it matters here: nothing is ranked."""

from functools import lru_cache
from typing import Final

JSON: Final = "application/json"
HTML: Final = "text/html"
TEXT: Final = "text/plain"


# There are few clients, and each says the same again and again.
@lru_cache(maxsize=256)
def accepts(header: str, media: str) -> bool:
    """Who says nothing takes anything."""
    if not header.strip():
        return True
    whole = media.partition("/")[0] + "/*"
    named = dict(_ranges(header))
    for wanted in (media, whole, "*/*"):
        if wanted in named:
            return named[wanted]
    return False


def _ranges(header: str) -> list[tuple[str, bool]]:
    """Each media range with whether it is wanted at all; a weight of nothing means that it is not."""
    found = []
    for part in header.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weights = [
            text.partition("=")[2].strip() for text in parameters if text.partition("=")[0].strip() == "q"
        ]
        found.append((media, not (weights and weights[-1].strip("0") in ("", "."))))
    return found
