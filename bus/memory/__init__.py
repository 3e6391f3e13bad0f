"""A message broker inside this process, for the embedded mode and the simulation.

It makes RabbitMQ's promises and fails in RabbitMQ's ways, so that code that works on it works on RabbitMQ: one contract
suite runs against both. It stores parcels as they are published. It is deterministic: no threads, no clock but the
event loop's, no random numbers. A parcel is never delivered inside the call that published it.

    exchange.py      which queues a routing key reaches
    queue.py         the properties of each kind of queue, and the order of its consumers
    virtual_host.py  exchanges, queues and dead-lettering: everything that outlives a connection
    journal.py       what a broker with a journal still has after its process was killed
    journal_file.py  the journal's file
    connection.py    rights, channels, confirms, deliveries, and what happens when a connection breaks
    broker.py        who may connect; and failures for tests: restarts, cut connections, alarms
"""

from bus.memory.broker import MemoryAccess, MemoryBroker, journaled_broker
from bus.memory.journal import Journal
from bus.memory.journal_file import JournalTakenError, JournalUnreadableError

__all__ = [
    "Journal",
    "JournalTakenError",
    "JournalUnreadableError",
    "MemoryAccess",
    "MemoryBroker",
    "journaled_broker",
]
