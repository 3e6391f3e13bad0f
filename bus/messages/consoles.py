"""Messages about the consoles of guests, which their hosts keep."""

from typing import Annotated

from msgspec import Meta

from bus.message import CellName, Integer, Message, StrictMessage
from bus.messages.build import InstanceId
from bus.messages.placement import Counter, Label

CONSOLE_BYTES_MAX = 64 * 1024


class AskConsole(StrictMessage, frozen=True, tag="console.query"):
    """Asks the compute of a cell what the guest of an instance has written to its serial console.

    At most `limit` bytes, from the byte `start` on; with a negative `start`, from so many bytes before the end on.
    """

    cell: CellName
    instance: InstanceId
    start: Integer = -4096
    limit: Annotated[int, Meta(ge=1, le=CONSOLE_BYTES_MAX)] = 4096


class ConsoleFound(Message, frozen=True, tag="console.found"):
    """A part of a console: `text` begins at the byte `start`, and the next part at `next`; all of it has `size` bytes now. Bytes that are
    no UTF-8 are replaced. `attempt` is the attempt of the instance whose console it is.

    `none` says why there is no console; empty if there is one.
    """

    text: str = ""
    start: Counter = 0
    next: Counter = 0
    size: Counter = 0
    attempt: Counter = 0
    none: Label = ""
