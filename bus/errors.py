"""What may go wrong that the caller could not have asked about, and so is raised.

Failure
├── Transient   try again: a deadlock, a lost connection, a server that restarts
│   ├── Unavailable   for as long as it takes
│   ├── Locked        somebody else holds what is needed: no attempt is counted
│   └── TookTooLong   beyond our limit: an attempt is counted if other work gets through
├── Poison      never will work: this item, by itself, with its reason
└── Bug         ours: stop, let it be delivered again, dead-lettered at the limit
"""


class Failure(Exception):  # noqa: N818 - the tree is named for what happened
    """Something that a worker could not do."""


class Transient(Failure):
    """Try again; nothing was done."""


class Unavailable(Transient):
    """A server that we need is away; try again for as long as it takes."""


class Locked(Transient):
    """Somebody else holds a lock that this needs. That is not the fault of this work, however often it happens."""


class TookTooLong(Transient):
    """A server was not done within our limit: it is overloaded, or this work is too much for it."""


class Poison(Failure):
    """It never will work."""


class Bug(Failure):
    """The program is wrong: going on would do harm."""
