"""Errors that are raised: failures that the caller could not have checked for in advance.

Failure
├── Operational             a broker, a database or a network failed: logged, counted, tried again
│   ├── Transient               try again: a deadlock, a serialisation failure, a server short of resources
│   │   ├── Unavailable             a server is down or rejects our login: try again for as long as it takes
│   │   │   ├── NoAnswer                no answer to a question in time (bus/workers/connections.py)
│   │   │   └── Overfull                too many messages wait for the broker already (bus/workers/publisher.py)
│   │   ├── Locked                  another session holds the lock: no attempt is counted
│   │   └── TookTooLong             over our time limit: an attempt is counted if other batches succeed
│   ├── Refusal                 the broker refused a request
│   │   ├── AccessRefused           the user has no right to it
│   │   └── NotFound                no such exchange or queue
│   ├── Interrupted             a connection or channel broke; open it again
│   │   ├── ConnectionLost          the outcome of unconfirmed or unacknowledged work is unknown
│   │   ├── OneWasRefused           one of several parcels under way was refused; the broker does not say which
│   │   └── ConsumerCancelled       the broker stopped delivering: queue deleted, or a delivery held too long
│   ├── CredentialsRefused      a REST API rejects our user or password (kit/)
│   ├── VersionNotOffered       a REST API is older than what is needed
│   ├── NoLongerOurs            a bare-metal node belongs to another daemon by now (ironic_sync/rest.py)
│   ├── Undeliverable           no queue takes this order or question
│   ├── NotTaken                a queue for this parcel is full
│   └── WrongAnswer             the answer has a type that does not answer the question
├── Poison                  this message can never be handled: it is dead-lettered with the reason
└── Bug                     our own fault: stop; the message is delivered again, and dead-lettered at the limit

An operational error never ends a process (kit/parts.py). A bug does, and so does every exception outside this tree.
bus/workers/handlers.py decides what happens to a message whose handler raised one of these errors.
"""

from typing import NamedTuple

import msgspec


class Failure(Exception):  # noqa: N818 - the tree is named for what happened
    """The base of all errors in this tree.

    The text of such an error says everything, so people see it without the name of its type.
    """


class Operational(Failure):
    """A broker, a database or a network failed. The program is correct and continues when the failure is repaired."""


class Transient(Operational):
    """Nothing was done; try again."""


class Unavailable(Transient):
    """A server that we need is down; try again for as long as it takes."""


class Locked(Transient):
    """Another session holds a lock that this work needs. The work is not to blame, however often this happens."""


class TookTooLong(Transient):
    """The server took longer than our limit: it is overloaded, or this work is too large."""


class Refusal(Operational):
    """The broker refused. Trying again has no effect until an operator repairs it."""


class AccessRefused(Refusal):
    """The broker refused because the user has no right to the exchange or queue."""


class NotFound(Refusal):
    """The broker has no exchange or queue of this name."""


class Interrupted(Operational):
    """A connection or a channel that was open has ended."""


class ConnectionLost(Interrupted):
    """The connection ended. Work that was neither confirmed nor acknowledged may or may not have been done."""


class OneWasRefused(Interrupted):
    """The broker refused one of the parcels under way on this channel, perhaps this one.

    The publisher sends each of them again alone, to learn which one was refused.
    """


class ConsumerCancelled(Interrupted):
    """The broker stopped delivering to this consumer."""


class CredentialsRefused(Operational):
    """A REST API does not accept this user, or the user may not do this. The request is tried again, since rights may be
    granted.
    """


class VersionNotOffered(Operational):
    """The microversion that is needed is not among those that a REST API offers."""


class Undeliverable(Operational):
    """No queue takes this order or question: the topology is not declared there, or the cell does not exist."""


class NotTaken(Operational):
    """A queue for this parcel is full."""


class WrongAnswer(Operational):
    """The answer has a type that does not answer the question."""


class Poison(Failure):
    """This message can never be handled."""


class Bug(Failure):
    """The program is wrong; continuing would do harm."""


# Everything that reading the text of another program may raise: no JSON, no UTF-8, nested too deep, not of the expected type, or
# without the parts that are read of it.
UNREADABLE = (
    *(msgspec.MsgspecError, ValueError, RecursionError),
    *(LookupError, TypeError, AttributeError, ArithmeticError),
)


class FieldProblem(NamedTuple):
    """Why a message is wrong: the reason, the wrong field and its value. A missing field has no value."""

    reason: str
    field: str = ""
    value: str = ""
