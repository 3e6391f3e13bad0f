"""The commands that README.md and docs/ print, as a reader would copy them to a terminal."""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")))
# Words that begin a command in a block. A block of anything else, such as a program or an output, has none of them.
_PROGRAMS = ("moor", "make", "curl", "export", "docker", "openstack", "python", ".venv/bin/", "oslopolicy-")
_BEGINS = re.compile(rf"(?:    )?(?P<text>(?:{'|'.join(map(re.escape, _PROGRAMS))})\S*( .*)?)")
_COMMENT = re.compile(r"\s{2,}#\s.*$| # .*$")
_SEPARATOR = re.compile(r"\s*;\s+|\s+&&\s+|\s+&(?:\s+|$)")


class Printed(Struct, frozen=True):
    """One command of a page. `goes_on`: it runs in the background, so the next command follows at once."""

    page: str
    line: int
    text: str
    goes_on: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def commands_of(page: str) -> list[Printed]:
    """The commands of a page, in the order in which they stand there."""
    found = []
    for number, line in _lines_of_blocks((ROOT / page).read_text()):
        if begins := _BEGINS.fullmatch(line.rstrip()):
            text = _COMMENT.sub("", begins["text"]).strip()
            found += [Printed(page, number, each, goes_on) for each, goes_on in _split(text)]
    return found


def _lines_of_blocks(text: str) -> Iterator[tuple[int, str]]:
    """The lines of indented blocks and of fenced blocks without a language, with their numbers."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fence = None if fence is not None else line.removeprefix("```").strip()
        elif fence in ("", "sh") or (fence is None and line.startswith("    ")):
            yield number, line


def _split(text: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for separator in _SEPARATOR.finditer(text):
        yield text[at : separator.start()], separator[0].strip() == "&"
        at = separator.end()
    if at < len(text):
        yield text[at:], False
