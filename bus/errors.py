"""What may go wrong that the caller could not have asked about, and so is raised.

Failure
├── Transient   try again: a deadlock, a lost connection, a server that restarts
├── Poison      never will work: this item, by itself, with its reason
└── Bug         ours: stop, let it be delivered again, dead-lettered at the limit
"""


class Failure(Exception):  # noqa: N818 - the tree is named for what happened
    """Something that a worker could not do."""


class Transient(Failure):
    """Try again; nothing was done."""


class Unavailable(Transient):
    """A server that we need is away; try again for as long as it takes."""


class Poison(Failure):
    """It never will work."""


class Bug(Failure):
    """The program is wrong: going on would do harm."""
