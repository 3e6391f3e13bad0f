"""What may go wrong that the caller could not have asked about, and so is raised.

Failure
├── Operational             what a broker, a database or a network may do: logged, counted, tried again
│   ├── Transient               try again: a deadlock, a serialisation failure, a server that is short of something
│   │   ├── Unavailable             a server is away, or lets us not in: try again for as long as it takes
│   │   │   ├── NoAnswer                nobody answered a question in time (bus/asking.py)
│   │   │   └── Overfull                too much waits for the broker already (bus/publisher.py)
│   │   ├── Locked                  somebody else holds what is needed: no attempt is counted
│   │   └── TookTooLong             beyond our limit: an attempt is counted if other work gets through
│   ├── Refusal                 the broker says no to a request
│   │   ├── AccessRefused           the user has no right to it
│   │   └── NotFound                no such exchange or queue
│   ├── Interrupted             what worked no longer does; open it anew
│   │   ├── ConnectionLost          and with it what was not confirmed or acknowledged
│   │   ├── OneWasRefused           one of several parcels under way, and the broker does not say which
│   │   └── ConsumerCancelled       the broker stopped delivering: queue deleted, or a delivery held too long
│   ├── CredentialsRefused      Ironic does not accept who we are (ironic_sync/rest.py)
│   ├── VersionNotOffered       Ironic's API is older than what is needed (ironic_sync/rest.py)
│   ├── NoLongerOurs            a bare-metal node belongs to another daemon by now (ironic_sync/rest.py)
│   ├── Undeliverable           no queue takes this order or question
│   ├── NotTaken                a queue for this parcel is full
│   └── WrongAnswer             a question was answered by something that is no answer to it
├── Poison                  never will work: this item, by itself, with its reason
└── Bug                     ours: stop, let it be delivered again, dead-lettered at the limit

An operational error never ends a process (bus/parts.py); a bug does, and so does every exception that is not in this
tree. What becomes of a message whose handler raised one of them, bus/handling.py decides.
"""


class Failure(Exception):  # noqa: N818 - the tree is named for what happened
    """Something that a worker could not do."""


class Operational(Failure):
    """What a broker, a database or a network may do; the program is right, and goes on when it is mended."""


class Transient(Operational):
    """Try again; nothing was done."""


class Unavailable(Transient):
    """A server that we need is away; try again for as long as it takes."""


class Locked(Transient):
    """Somebody else holds a lock that this needs. That is not the fault of this work, however often it happens."""


class TookTooLong(Transient):
    """A server was not done within our limit: it is overloaded, or this work is too much for it."""


class Refusal(Operational):
    """The broker said no; asking again changes nothing until somebody mends it."""


class AccessRefused(Refusal):
    """The user has no right to it."""


class NotFound(Refusal):
    """No such exchange or queue."""


class Interrupted(Operational):
    """What was open is open no more."""


class ConnectionLost(Interrupted):
    """Whatever was neither confirmed nor acknowledged may or may not have happened."""


class OneWasRefused(Interrupted):
    """One of the parcels that were under way on this channel was refused, maybe this one: published with no other beside
    it, each is told its own fate.
    """


class ConsumerCancelled(Interrupted):
    """The broker stopped delivering to this consumer."""


class Undeliverable(Operational):
    """No queue takes this order or question: the topology was not declared there, or the cell does not exist."""


class NotTaken(Operational):
    """A queue for this parcel is full."""


class WrongAnswer(Operational):
    """A question was answered by something that is no answer to it."""


class Poison(Failure):
    """It never will work."""


class Bug(Failure):
    """The program is wrong: going on would do harm."""
