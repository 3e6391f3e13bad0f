"""The base of all messages, and the envelope that the bus puts around them.

A message is a frozen value with a type, its tag on the wire. The envelope has what the bus needs beside it: an id for
tracing, when it was sent and because of which message, and how often it was tried.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, ClassVar, Generic, NewType, TypeVar
from uuid import UUID

from msgspec import Meta, Struct

CellName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}\Z")]
# Part of a routing key, in which `-` stands for no project.
Project = Annotated[str, Meta(pattern=r"^(?!-\Z)[a-z0-9_-]{0,64}\Z")]
# The name of a person on whose behalf a program orders; the program vouches for it. It is shown and stored, so it has no control characters.
UserName = Annotated[str, Meta(max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]
# In the range of PostgreSQL's and AMQP's integers.
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# Any number that a column of 64 bits can have.
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
ProviderId = NewType("ProviderId", UUID)
ConsumerId = NewType("ConsumerId", UUID)
GroupId = NewType("GroupId", UUID)
AggregateId = NewType("AggregateId", UUID)


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """An order, a question, an answer or an event.

    Frozen values cannot form cycles, so the garbage collector skips them and their parts (`gc=False`). With thousands
    of messages in memory it would do little else.

    `VERSION` rises when the meaning of a message changes. A new optional field, or a new value of an open vocabulary (a
    trait, a resource class), does not raise it: older readers still understand the message.
    """

    VERSION: ClassVar[int] = 1
    # Between workers an unknown key comes from a later release and is skipped.
    IS_STRICT: ClassVar[bool] = False
    # Read in place of a cell or project where a message has none.
    NOTHING: ClassVar[str] = ""

    def about(self) -> Collection[int] | None:
        """Keys of what this message is about. Messages about different things may be handled in another order than that of the
        queue, so that those of a kind can be handled together. None: nothing may pass it, and it passes nothing.
        """
        return None


class StrictMessage(Message, frozen=True):
    """A message from people and their programs: an unknown key is an error, otherwise the order would be obeyed only in
    part.
    """

    IS_STRICT: ClassVar[bool] = True


class CellMessage(Message, frozen=True):
    """A message that belongs to one cell. The cell's name is the last word of its routing key."""

    cell: CellName


class ProjectMessage(StrictMessage, frozen=True, kw_only=True):
    """A message about one project, or about all. The project's name is the last word of its routing key.

    A message without a project is about all projects. Its sender needs the right to all of them.
    """

    project: Project = ""


M_co = TypeVar("M_co", bound=Message, covariant=True)


class Envelope(Struct, Generic[M_co], frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message and the bus's data about it; one line of an AMQP message.

    `id` is for tracing and for matching an answer to its question. It is not an identity: a request that was sent twice
    has two ids. `attempts` counts how often the message was returned to be tried again.
    """

    message: M_co
    id: str = ""
    version: Count = 1
    sent_at: Annotated[datetime, Meta(tz=True)] | None = None
    cause: str = ""
    trace: str = ""
    attempts: Count = 0


def type_of(message: Message | type[Message]) -> str:
    """The name of this message type on the wire."""
    tag = message.__struct_config__.tag
    if not isinstance(tag, str):
        raise TypeError(f"{message!r} has no type: every message names one in its class line, tag='...'")
    return tag
