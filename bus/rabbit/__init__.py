"""RabbitMQ behind the broker port: the one package that speaks AMQP.

aio-pika connects: addresses, TLS, logging in, heartbeats, frames. The channels on that connection are our own. One of
the library's costs a task, several futures and a lock for every message, looks at all unconfirmed parcels at every
confirm, and answers a broken connection with a cancellation that nobody asked for. Ours hands each frame on as it is
read, and lets what many callers write leave in one piece, which is what the broker's own costs depend on most.

Nothing here connects again or repeats anything: see bus/link.py for that.

    broker.py       an address, who connects there, and why that failed
    connection.py   what the port wants of a connection: objects declared, channels opened
    publishing.py   parcels out, and what the broker says of each
    consuming.py    deliveries in, and how they are settled
    wire.py         the one stream of frames out to the broker, and the channels that share it
    channel.py      one AMQP channel: questions and answers, frames put together, its end
    frames.py       parcels and the topology as frames, and back
    decoding.py     what others write into a frame, read without complaint
    endings.py      how what has ended is told to each who waits
"""

from bus.rabbit.broker import RabbitBroker

__all__ = ["RabbitBroker"]
