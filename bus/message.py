"""What every message is, and what the bus adds to it on its way.

A message is a frozen value with a type, which is its tag on the wire. What the bus must know beside it (an id to
trace it by, when it was sent and because of what, how often it was tried) is in the envelope around it.
"""

from datetime import datetime
from typing import Annotated, ClassVar, Generic, NewType, TypeVar
from uuid import UUID

from msgspec import Meta, Struct

CellName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}\Z")]
# Part of a routing key, where `-` stands for none.
Project = Annotated[str, Meta(pattern=r"^(?!-\Z)[a-z0-9_-]{0,64}\Z")]
# What fits both PostgreSQL's integers and AMQP's.
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
ProviderId = NewType("ProviderId", UUID)
ConsumerId = NewType("ConsumerId", UUID)
GroupId = NewType("GroupId", UUID)
AggregateId = NewType("AggregateId", UUID)


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """An order, a question, an answer or an event.

    A frozen value leads to no cycle, so the garbage collector need not follow it, nor anything it is made of: with
    thousands of messages in hand it would do little else.

    `VERSION` rises when the meaning of a message changes. A new optional field, or a new value of an open
    vocabulary (a trait, a resource class), does not raise it: older readers carry on.
    """

    VERSION: ClassVar[int] = 1
    # What people and their programs write: a key that nobody reads is refused, since it would be an order that is
    # obeyed in part. Between workers such a key is a later release's, and is skipped.
    IS_STRICT: ClassVar[bool] = False


M_co = TypeVar("M_co", bound=Message, covariant=True)


class Envelope(Struct, Generic[M_co], frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message and what the bus says about it; one line of an AMQP message.

    `id` is for tracing and for matching an answer to its question, never an identity: a request that was sent
    twice has two. `attempts` counts the times the message was put back to be tried again.
    """

    message: M_co
    id: str = ""
    version: Count = 1
    sent_at: Annotated[datetime, Meta(tz=True)] | None = None
    cause: str = ""
    trace: str = ""
    attempts: Count = 0


def type_of(message: Message | type[Message]) -> str:
    """The name of this kind of message on the wire."""
    tag = message.__struct_config__.tag
    if not isinstance(tag, str):
        raise TypeError(f"{message!r} has no type: every message names one in its class line, tag='...'")
    return tag
