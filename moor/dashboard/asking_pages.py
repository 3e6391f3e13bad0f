"""Pages that ask schedulers: a question that is refused is a page that says so."""

from typing import TypeVar
from uuid import UUID

from bus.message import Message
from bus.workers.asking import NoAnswer
from engine.flavors import InstanceId
from kit.errors import Unavailable
from moor.asking import CommandClient, answer_of
from moor.client.errors import ClientError
from moor.dashboard.rendering import PageRefused, PageRenderer

T = TypeVar("T")

# So many rows has a page of a list.
PAGE = 100
LOOK_AT_WORKERS = "`moor status`, and the page of workers, say which workers were heard last."
NUMBER_MAX = 2**31
DIGITS_MAX = 10


class AskingPages(PageRenderer):
    def __init__(self, asking: CommandClient) -> None:
        self._asking = asking

    async def _ask(self, question: Message, kind: type[T]) -> T:
        try:
            return await answer_of(self._asking, question, kind)
        except ClientError as wrong:
            raise PageRefused(str(wrong)) from None
        except NoAnswer as late:
            raise Unavailable(f"No scheduler answers: {late}. {LOOK_AT_WORKERS}") from None


def id_of(text: str) -> InstanceId | None:
    """The id after which a page begins; none for the first page."""
    try:
        return InstanceId(UUID(text)) if text else None
    except ValueError:
        raise PageRefused(f"after is {text!r}: it is no id.") from None


def is_number(text: str) -> bool:
    # A text of thousands of digits is no number for Python either.
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and int(text) <= NUMBER_MAX
