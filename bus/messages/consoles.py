"""Messages about the consoles of guests, which their hosts keep."""

from typing import Annotated

from msgspec import Meta

from bus.message import CellMessage, Integer, Message, ProjectMessage
from bus.messages.build import InstanceId
from bus.messages.placement import Counter, Label, Moment

CONSOLE_BYTES_MAX = 64 * 1024

Bytes = Annotated[int, Meta(ge=1, le=CONSOLE_BYTES_MAX)]


class AskConsole(ProjectMessage, frozen=True, tag="console.query"):
    """Asks what the guest of an instance has written to its serial console, which its host keeps.

    At most `limit` bytes, from the byte `start` on; with a negative `start`, from so many bytes before the end on.

    With `project`, only of an instance of that project. Without it, of all projects, which needs the right to all of them.
    """

    instance: InstanceId
    start: Integer = -4096
    limit: Bytes = 4096


class TellConsole(CellMessage, frozen=True, tag="console.tell"):
    """Order to the compute of this cell: publish what a `console.query` asks for, as `console.told`.

    `question` identifies the `console.query` in both messages. The compute obeys the order soon, or not at all.
    """

    question: Label
    asked_at: Moment
    instance: InstanceId
    start: Integer = -4096
    limit: Bytes = 4096


class ConsoleTold(CellMessage, frozen=True, tag="console.told"):
    """A part of a console, published for the scheduler that asked by `console.tell`.

    It is an event, since cells have no right to send messages to schedulers. Its fields are those of `console.found`.
    """

    question: Label
    text: str = ""
    start: Counter = 0
    next: Counter = 0
    size: Counter = 0
    attempt: Counter = 0
    none: Label = ""


class ConsoleFound(Message, frozen=True, tag="console.found"):
    """A part of a console: `text` begins at the byte `start`, and the next part at `next`; all of it has `size` bytes now. Bytes that are
    no UTF-8 are replaced. A part that is too large for a message is shorter than what was asked for. `attempt` is the attempt of
    the instance whose console it is.

    `none` says why there is no console; empty if there is one.
    """

    text: str = ""
    start: Counter = 0
    next: Counter = 0
    size: Counter = 0
    attempt: Counter = 0
    none: Label = ""
