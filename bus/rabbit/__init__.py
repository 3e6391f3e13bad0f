"""RabbitMQ behind the broker port. Only this package speaks AMQP.

aio-pika makes the connection: addresses, TLS, login, heartbeats, frames. The channels on it are our own. A channel of
the library costs a task, several futures and a lock per message, walks all unconfirmed parcels at each confirm, and
reports a broken connection as a cancellation that no caller asked for. Ours pass each frame on as it is read, and send
the frames of many callers in one write, which lowers the broker's cost most.

Over the public channels a boot costs 7 % more (docs/benchmarks.md), and any publisher can end its readers' connections by a
field that the library's decoders refuse. Three changes upstream would end the use of undocumented parts. aiormq's connection
would take the frames of a channel, and give its frames to a listener (wire.py). It would say whether the broker blocks
(wire.py). And pamqp could be given decoders (frames.py). `tests/unit/brokers/test_private_parts.py` watches these parts.

Nothing here reconnects or retries: bus/workers/sending.py does.

    broker.py    an address, connecting to it, the reasons of failures, and the connection of the broker port
    channel.py   one AMQP channel, and those for publishing and for consuming
    wire.py      the socket of a connection, shared by all channels
    frames.py    parcels as frames, and back; lenient decoders for fields that other senders write
    rpc.py       the RPC of another program
"""

from bus.rabbit.broker import RabbitBroker

__all__ = ["RabbitBroker"]
