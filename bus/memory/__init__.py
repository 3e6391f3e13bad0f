"""A message broker inside this process, for the embedded mode and the simulation.

It makes RabbitMQ's promises and fails in RabbitMQ's ways, so that code that works on it works on RabbitMQ: one contract
suite runs against both. It stores parcels as they are published. It is deterministic: no threads, no clock but the
event loop's, no random numbers. A parcel is never delivered inside the call that published it.
"""

from bus.memory.broker import MemoryAccess, MemoryBroker, journaled_broker
from bus.memory.journal import Journal, JournalTakenError, JournalUnreadableError, JournalWriteError

__all__ = [
    "Journal",
    "JournalTakenError",
    "JournalUnreadableError",
    "JournalWriteError",
    "MemoryAccess",
    "MemoryBroker",
    "journaled_broker",
]
