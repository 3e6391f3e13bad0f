"""The tables of docs/nova.md: what Nova's filters, weighers and options are here. `python -m tests.pages` writes them.

They come from the same data as the command `moor nova settings`.
"""

from collections.abc import Iterator

from moor.nova.option_map import DECIDED, FILTERS, NO_EQUAL, OPTIONS, STAYS, WEIGHERS, Key
from tests.pages.markdown import table

BEGIN, END = "<!-- nova map: begin -->", "<!-- nova map: end -->"


def section() -> str:
    parts = (
        BEGIN,
        "### Filters",
        table(("Nova's filter", "here"), _filters()),
        "### Weighers",
        table(("Nova's weigher", "here"), ((f"`{name}`", each.says) for name, each in WEIGHERS.items())),
        "### Options",
        table(("option of nova.conf", "here"), _options()),
        "### Options without an equal",
        "A value that asks for nothing that is missing here is not named by the command.",
        table(("option of nova.conf", "why"), ((_key(key), each.why) for key, each in NO_EQUAL.items())),
        "### Options that stay",
        "Nova's other services go on reading them.",
        table(("option of nova.conf", "why"), ((_key(key), why) for key, why in STAYS.items())),
        END,
    )
    return "\n\n".join(parts)


def _filters() -> Iterator[tuple[str, str]]:
    for name, each in FILTERS.items():
        yield f"`{name}`", each.says if each.has_equal else f"no equal: {each.says}"


def _options() -> Iterator[tuple[str, str]]:
    for key, says in DECIDED.items():
        yield _key(key), says
    for key, each in OPTIONS.items():
        yield _key(key), f"`{each.section}.{each.setting}`"


def _key(key: Key) -> str:
    return f"`[{key[0]}] {key[1]}`"
