"""A message broker in this process: what the embedded product and the simulation run on.

It promises what RabbitMQ promises and breaks as RabbitMQ breaks, so that what was built on it holds on the real one: one
contract suite runs against both. It stores parcels as they are published, and it is deterministic: no threads, no clock
but the running loop's, no chance, and nothing is ever delivered inside the call that published it.

    exchange.py      which queues a routing key reaches
    queue.py         what each kind of queue promises, and whose turn it is
    host.py          the objects that stand, and dead-lettering: all that outlives a connection
    journal.py       what a broker still knows after its process was killed, if it has one
    journal_file.py  the file of that
    connection.py    rights, channels, confirms, deliveries, and what happens when they break
    broker.py        who may connect, and what may befall a broker: restarts, cuts, alarms
"""

from bus.memory.broker import MemoryAccess, MemoryBroker, kept_broker
from bus.memory.journal import Journal
from bus.memory.journal_file import JournalTakenError, JournalUnreadableError

__all__ = [
    "Journal",
    "JournalTakenError",
    "JournalUnreadableError",
    "MemoryAccess",
    "MemoryBroker",
    "kept_broker",
]
