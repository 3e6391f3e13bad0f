"""Does a client take this media type? By the Accept header, as far as it matters here: nothing is ranked."""

import re
from functools import lru_cache
from typing import Final

JSON: Final = "application/json"
HTML: Final = "text/html"
TEXT: Final = "text/plain"
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_RANGE: Final = re.compile(rf"\s*{_WORD}/{_WORD}(\s*;\s*{_WORD}=({_WORD}|\"[^\"]*\"))*\s*", re.ASCII)


# There are few clients, and each says the same again and again.
@lru_cache(maxsize=256)
def accepts(header: str, media: str) -> bool:
    """A client that says nothing takes any type; so does one whose header cannot be read, as in Placement."""
    if not header.strip() or not all(_RANGE.fullmatch(part) for part in header.split(",") if part.strip()):
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
