"""Places of hosts. A place is a path of failure domains, the largest first: `dc1/hall2/row7/rack3`.

A domain is the beginning of a place, at a whole name: `dc1/hall2` has all hosts below it. Its level says how many names it has; level
0 is the host itself. A host with a shorter place than a level asks for is in no domain of that level.
"""

import re
from typing import Annotated

from msgspec import Meta

PLACE_LEVELS_MAX = 8
PLACE_LENGTH_MAX = 255
_NAME = r"[A-Za-z0-9._-]{1,63}"
PLACE_PATTERN = rf"^({_NAME}(/{_NAME}){{0,{PLACE_LEVELS_MAX - 1}}})?\Z"
_PLACE = re.compile(PLACE_PATTERN)

# Empty: it is not known where the host is.
Place = Annotated[str, Meta(pattern=PLACE_PATTERN, max_length=PLACE_LENGTH_MAX)]
Level = Annotated[int, Meta(ge=0, le=PLACE_LEVELS_MAX)]


def why_no_place(text: str) -> str:
    """Why this is no place; empty if it is one."""
    if len(text) > PLACE_LENGTH_MAX:
        return f"a place has at most {PLACE_LENGTH_MAX} characters, and this has {len(text)}"
    if (names := text.count("/") + 1) > PLACE_LEVELS_MAX:
        return f"a place has at most {PLACE_LEVELS_MAX} names, and this has {names}"
    if not _PLACE.match(text):
        return "a place is names with a slash between them, such as dc1/hall2/row7/rack3: each of 1 to 63 letters, digits, '.', '_' and '-'"
    return ""


def domain_of(place: str, level: int) -> str:
    """The domain of this level in which a host at this place is; empty if its place is shorter."""
    names = place.split("/") if place else []
    return "/".join(names[:level]) if 0 < level <= len(names) else ""


def is_within(place: str, domain: str) -> bool:
    """Is a host at this place in the domain? Every host is in the empty one."""
    return not domain or place == domain or place.startswith(f"{domain}/")
