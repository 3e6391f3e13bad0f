"""The buses that messages are sent over, each with the whole topology and no other traffic."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from bus.addresses import broker_at
from bus.broker import Broker
from bus.memory import MemoryBroker
from bus.topology import objects_of
from tests.servers import PrivateRabbitMQ
from tools.benchmarks.cpu import ProcessTree, Spender
from tools.benchmarks.measuring import BROKER
from tools.benchmarks.messages import CELL
from tools.benchmarks.remote_role import remote_role


class Bus(Struct, frozen=True):
    """Without a `url` the bus exists only in this process, whose CPU time then includes the broker's."""

    name: str
    broker: Broker
    url: str = ""
    spenders: Mapping[str, Spender] = {}


@asynccontextmanager
async def memory_bus() -> AsyncIterator[Bus]:
    broker = MemoryBroker().as_user()
    await _declare(broker)
    yield Bus("memory", broker)


@asynccontextmanager
async def unix_bus() -> AsyncIterator[Bus]:
    """The memory broker in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="moor-") as directory:
        path = str(Path(directory) / "bus.sock")
        async with remote_role("broker", path) as served:
            broker = broker_at(f"unix://{path}")
            await _declare(broker)
            yield Bus("unix", broker, f"unix://{path}", {BROKER: served.spender})


@asynccontextmanager
async def rabbitmq_bus() -> AsyncIterator[Bus]:
    with PrivateRabbitMQ() as server:
        assert server.keeper is not None
        broker = broker_at(server.url)
        await _declare(broker)
        yield Bus("rabbitmq", broker, server.url, {BROKER: ProcessTree(server.keeper)})


async def _declare(broker: Broker) -> None:
    connection = await broker.connect()
    try:
        await connection.declare(objects_of((CELL,)))
    finally:
        await connection.close()
