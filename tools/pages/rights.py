"""The rights of every user on a broker, as text: tests/data/rights.txt is committed, so that a change of rights is seen by the reviewer.

`python -m tools.pages` writes it; a test fails when it is out of date (tests/unit/bus/test_definitions.py).
"""

from collections.abc import Iterator
from pathlib import Path

from bus.definitions import NOTHING, rights_by_user
from bus.message import REPLY, type_of
from bus.messages import ALL
from bus.topology import Application, objects_of
from tools.pages.authority_table import senders

FILE = Path(__file__).parents[2] / "tests" / "data" / "rights.txt"
CELL = "cell1"
APPLICATIONS = (Application("shop", projects=("shop",)), Application("root", admin=True))


def text() -> str:
    return "\n".join((*_users(), *_messages(), ""))


def _users() -> Iterator[str]:
    rights = rights_by_user(objects_of((CELL,)).exchanges, (CELL,), applications=APPLICATIONS)
    for user, may in sorted(rights.items()):
        yield user
        for right in ("configure", "write", "read"):
            yield from _lines(right, getattr(may, right))
        for topic in may.topics:
            yield from _lines(f"write to {topic.exchange}:", topic.write)
            yield from _lines(f"read from {topic.exchange}:", topic.read)
    yield ""


def _lines(right: str, pattern: str) -> Iterator[str]:
    """A line for each name or key of a pattern that allows any."""
    if pattern != NOTHING:
        yield from (f"  {right} {each}" for each in pattern.removeprefix("^(").removesuffix(")$").split("|"))


def _messages() -> Iterator[str]:
    for kind in sorted(ALL, key=type_of):
        if kind.ROUTE.exchange != REPLY:
            yield f"{type_of(kind)}: sent by {', '.join(senders(kind))}"
