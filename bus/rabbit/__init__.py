"""RabbitMQ behind the broker port. Only this package speaks AMQP, by the public API of aio-pika and of aiormq below it.

aio-pika connects: addresses, TLS, login, heartbeats. The channels are aiormq's, since those of aio-pika cost more for each message and
pass on less. What is needed beyond what the libraries document stands in undocumented.py, and
`tests/unit/brokers/test_rabbit_names.py` lists every name of theirs that is used.

Nothing here reconnects or retries: bus/workers/sending.py does.

    broker.py        an address, connecting to it, when reading rests, the reasons of failures, and the connection of the broker port
    connection.py    an open connection: its channels, its alarms, and its end
    channels.py      publishing and consuming
    parcels.py       parcels as the library takes and gives them
    rpc.py           the RPC of another program
    undocumented.py  lenient decoders for fields that other senders write, and the beginning of an alarm
"""

from bus.rabbit.broker import RabbitBroker

__all__ = ["RabbitBroker"]
