"""The base of all messages with what each type says about itself, the envelope that the bus puts around a message, and the
parcel in which messages travel.

A message is a frozen value with a type, its tag on the wire. The envelope has what the bus needs beside it: an id for
tracing, when it was sent and because of which message.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from engine.inventories import CellName, Count, Label, Project

# The exchanges on which messages are published; a cell has one of its own.
API = "moor.api"
PLACEMENT = "moor.placement"
CELL = "moor.cell.{cell}"
EVENTS = "moor.events"
REPLY = "moor.reply"

QueueName = Literal[
    "scheduler.requests",
    "scheduler.questions",
    "scheduler.events",
    "placement.work",
    "placement.claims",
    "placement.searches",
    "placement.questions",
    "conductor.{cell}.work",
    "conductor.{cell}.questions",
    "compute.{cell}.work",
    "compute.{cell}.questions",
    "ironic.{cell}.work",
    "keeper.requests",
    "keeper.questions",
    "keeper.events",
]
RoleName = Literal[
    "scheduler", "placement", "conductor", "compute", "ironic", "keeper", "operator", "application", "admin"
]
# The exchange of a queue's orders and questions, by the role that reads it; any other role reads a cell's exchange.
_EXCHANGES = {"scheduler": API, "keeper": API, "placement": PLACEMENT}


class Kind(Enum):
    """The kinds of messages. Orders and questions must reach a queue; an event may have no listener."""

    ORDER = "order"
    QUESTION = "question"
    ANSWER = "answer"
    EVENT = "event"

    @property
    def is_kept(self) -> bool:
        """Does the broker store such messages on disk? Only orders and events: questions and answers are repeated."""
        return self in (Kind.ORDER, Kind.EVENT)


class Scope(Enum):
    """What follows the type in the routing key of a message, by the attribute of the message that says it."""

    NONE = "NOTHING"
    CELL = "cell"
    # The project named by the message; `-` if it names none.
    PROJECT = "project"


class Route(Struct, frozen=True):
    """The way of a message type. Exchanges' bindings, and the rights of users, follow from the routes of all types (bus/topology.py).

    `to` is the queue that takes it. An event may have none: it is heard by those that listen. Questions are answered by
    messages of type `answer`; so are orders whose sender may wait for the outcome.

    `by` are the roles that may send it. What an application may send for its projects, an admin may send for all; what an
    admin may send, an operator may, too. `heard_by` are workers that listen to an event and do not hear it as one of
    `FACTS`. A `public` message stands in the reference of the bus, though a worker sends it. Some fields name an instance, a
    project, a cell or a host: `compared` says with what each is compared, if no general rule of the reference does
    (`tools/pages/authority_table.py`).
    """

    kind: Kind
    to: QueueName | Literal[""] = ""
    answer: str = ""
    by: tuple[RoleName, ...] = ()
    heard_by: tuple[RoleName, ...] = ()
    public: bool = False
    compared: Mapping[str, str] = {}

    @property
    def exchange(self) -> str:
        if self.kind is Kind.ANSWER:
            return REPLY
        return EVENTS if self.kind is Kind.EVENT else _EXCHANGES.get(self.to.partition(".")[0], CELL)


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """An order, a question, an answer or an event.

    Frozen values cannot form cycles, so the garbage collector skips them and their parts (`gc=False`). With thousands
    of messages in memory it would do little else.

    Each type has a `ROUTE`. `VERSION` rises when the meaning of a message
    changes. A new optional field, or a new value of an open vocabulary (a trait, a resource class), does not raise it: older
    readers still understand the message.
    """

    ROUTE: ClassVar[Route]
    SCOPE: ClassVar[Scope] = Scope.NONE
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


class AnswerMessage(Message, frozen=True):
    """A message to whoever asked: it goes to the queue that the question names. The roles that read a question's queue may send it."""

    ROUTE = Route(Kind.ANSWER)


class StrictMessage(Message, frozen=True):
    """A message from people and their programs: an unknown key is an error, otherwise the order would be obeyed only in
    part.
    """

    IS_STRICT: ClassVar[bool] = True


class CellMessage(Message, frozen=True):
    """A message that belongs to one cell. The cell's name is the last word of its routing key."""

    SCOPE = Scope.CELL

    cell: CellName


class ProjectMessage(StrictMessage, frozen=True, kw_only=True):
    """A message about one project, or about all. The project's name is the last word of its routing key.

    A message without a project is about all projects. Its sender needs the right to all of them. With `for_member`, the answer is
    for a member of the project: it says what a project sees (docs/bus-concepts.md), as each answer to an application of projects does.
    """

    SCOPE = Scope.PROJECT

    project: Project = ""
    for_member: Annotated[
        bool, Meta(description="the answer is for a member of the project: it says what a project sees")
    ] = False


M_co = TypeVar("M_co", bound=Message, covariant=True)


class Envelope(Struct, Generic[M_co], frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message and the bus's data about it; one line of an AMQP message.

    `id` is for tracing and for matching an answer to its question. It is not an identity: a request that was sent twice
    has two ids. How often a message was tried is not its sender's to say: whoever parks it for another try counts that in a header.
    """

    message: M_co
    # These are copied into what follows from the message, so they are short.
    id: Label = ""
    version: Count = 1
    sent_at: Annotated[datetime, Meta(tz=True)] | None = None
    cause: Label = ""
    trace: Label = ""


def type_of(message: Message | type[Message]) -> str:
    """The name of this message type on the wire."""
    tag = message.__struct_config__.tag
    if not isinstance(tag, str):
        raise TypeError(f"{message!r} has no type: every message names one in its class line, tag='...'")
    return tag


# The body of a parcel is one message, or several, one a line.
PLAIN = "application/json"
LINES = "application/x-ndjson"
PARCEL_BYTES_MAX = 256 * 1024
PARCEL_ITEMS_MAX = 200

_encode_lines = msgspec.json.Encoder().encode_lines


def encode_lines(envelopes: Sequence[Envelope[Message]]) -> bytes:
    """Encode several messages as the body of one parcel: one JSON object on each line."""
    return _encode_lines(envelopes)[:-1]


class Parcel(Struct, frozen=True):
    """One AMQP message, with one or more messages of ours in its body."""

    exchange: str
    routing_key: str
    body: bytes
    content_type: str = PLAIN
    persistent: bool = True
    mandatory: bool = False
    reply_to: str = ""
    headers: Mapping[str, str | int] = {}


# The names of the headers that a parcel may have.
#
# A worker sets ours on a message that it returns to a queue or dead-letters. The broker sets its own on a parcel
# that it dead-letters. Any sender may write them all: bus/workers/authority.py says whose count.


REASON = "moor-reason"
QUEUE = "moor-queue"
ATTEMPTS = "moor-attempts"
# The process that last met a bug at the message.
FAILED_IN = "moor-failed-in"
WHERE = "moor-where"
SENDER = "moor-sender"
# The exchange and key that the message was first published to.
EXCHANGE = "moor-exchange"
KEY = "moor-key"
EXPIRATION = "moor-expiration"
# A unique name of a dead letter, and how often a message of a newer version was returned to wait for a newer worker.
LETTER = "moor-letter"
# When a worker dead-lettered the message, in ISO 8601.
BURIED_AT = "moor-buried-at"
WAITS = "moor-newer-waits"

# Set by the broker; RabbitMQ's own names. Beside a dead letter they say how it died last: bus/rabbit/parcels.py.
BROKER_REASON = "x-first-death-reason"
BROKER_QUEUE = "x-first-death-queue"
BROKER_EXCHANGE = "x-first-death-exchange"
BROKER_KEY = "x-first-death-key"
DELIVERY_LIMIT = "delivery_limit"
