"""What an order is: it says first what it will do, and is sent when its user confirms it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from msgspec import Struct

from moor.asking import CommandClient
from moor.dashboard.jobs import DashboardJob
from moor.dashboard.letters import LetterReader
from moor.dashboard.rendering import Reader

REASON_LENGTH_MAX: Final = 255
SURE: Final = "sure"

Given = Mapping[str, str]


class OrderQuestion(Struct, frozen=True, kw_only=True):
    """What an order will do: what its page says before it is sent.

    `about` is what it acts on, and `given` the fields that name that. `sure` is a statement that the user has to confirm;
    empty if there is none.
    """

    title: str
    button: str
    sentences: Sequence[str]
    instances: int
    about: str
    given: Given
    back: str
    sure: str = ""
    asks_reason: bool = False
    # It cannot be taken back.
    is_harmful: bool = False


class DashboardOrder(Protocol):
    # May members order it for what is of their project?
    for_members: bool

    async def question(self, clouds: "Clouds", given: Given, reader: Reader) -> OrderQuestion:
        """What it would do. Raises PageRefused if it cannot be done."""
        ...

    async def carry_out(self, clouds: "Clouds", given: Given, job: DashboardJob) -> None: ...


class Clouds:
    """The cloud, for orders: `asking` asks for pages, `ordering` connects each order anew, as a user who may send it."""

    def __init__(
        self,
        asking: CommandClient,
        letters: LetterReader,
        ordering: Callable[[], AbstractAsyncContextManager[CommandClient]],
    ) -> None:
        self.asking = asking
        self.letters = letters
        self.ordering = ordering
