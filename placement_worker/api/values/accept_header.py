"""Does a client accept this media type? Reads the Accept header as far as needed here: types are not ranked."""

import re
from functools import lru_cache
from typing import Final

JSON: Final = "application/json"
HTML: Final = "text/html"
TEXT: Final = "text/plain"
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_RANGE: Final = re.compile(rf"\s*{_WORD}/{_WORD}(\s*;\s*{_WORD}=({_WORD}|\"[^\"]*\"))*\s*", re.ASCII)


# Few clients, which send the same header again and again.
@lru_cache(maxsize=256)
def accepts(header: str, media: str) -> bool:
    """Does a client with this Accept header take this media type?

    An empty header accepts every type, and so does a header that cannot be parsed, as in Placement.
    """
    if not header.strip() or not all(_RANGE.fullmatch(part) for part in header.split(",") if part.strip()):
        return True
    whole = media.partition("/")[0] + "/*"
    named = dict(_ranges(header))
    for wanted in (media, whole, "*/*"):
        if wanted in named:
            return named[wanted]
    return False


def _ranges(header: str) -> list[tuple[str, bool]]:
    """The media ranges of the header, each with whether the client accepts it: a weight of 0 means that it does not."""
    found = []
    for part in header.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weights = [
            text.partition("=")[2].strip() for text in parameters if text.partition("=")[0].strip() == "q"
        ]
        found.append((media, not (weights and weights[-1].strip("0") in ("", "."))))
    return found
