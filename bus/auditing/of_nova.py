"""Which consumers are Nova's, and which of those may be freed? Pure.

Nova, and a scheduler of ours in its place, write allocations over HTTP. On Nova's own providers these have no cell. No row of ours has any
of them, so they look like orphans and leaks, but only Nova can say whether it needs them.
"""

from bus.auditing.views import INSTANCE, InstanceView
from bus.messages.books import BookEntry

# The types that Nova gives its consumers.
TYPES = (INSTANCE, "MIGRATION")


def is_of_nova(consumer: BookEntry) -> bool:
    """Is this Nova's, or another program's on providers of no cell?"""
    return not consumer.cell


def is_held_by_nova(view: InstanceView) -> bool:
    """Does this consumer hold something for an instance or a migration that only Nova can know?"""
    consumer = view.consumer
    return (
        view.is_alone
        and consumer is not None
        and bool(consumer.held)
        and is_of_nova(consumer)
        and consumer.type in TYPES
    )
