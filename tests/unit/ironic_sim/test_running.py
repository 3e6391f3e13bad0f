"""The simulated Ironic as parts of a process: its work, its sender on a broker, its API on a port."""

import asyncio
from contextlib import AsyncExitStack

from bus.broker import Delivery
from bus.memory import MemoryBroker
from bus.topology import IRONIC, Binding, Exchange, Objects, Queue, QueueKind
from kit.process import Part
from laboratory.ironic import (
    IronicSimSettings,
    available_nodes,
    simulated_ironic,
)
from tests.simulation.loop import simulated
from tests.unit.ironic_sim.worlds import STARTED_S

NOTIFICATIONS = Queue("heard", QueueKind.WORK, (Binding(IRONIC, "ironic_versioned_notifications.*"),))
EXCHANGE = Exchange(IRONIC, durable=False)


def loop_clock_s() -> float:
    return STARTED_S + asyncio.get_running_loop().time()


async def running(*parts: Part) -> AsyncExitStack:
    """Run the parts until the stack is closed."""
    stack = AsyncExitStack()
    for part in parts:
        task = asyncio.create_task(part.run())
        stack.push_async_callback(asyncio.wait_for, task, 60)
        stack.push_async_callback(part.stop)
    return stack


@simulated
async def test_notifications_reach_a_queue_in_order_and_a_restarted_broker_has_its_exchange_again() -> None:
    async def received(broker: MemoryBroker, count: int) -> list[Delivery]:
        connection = await broker.as_user().connect()
        await connection.declare(Objects((EXCHANGE,), (NOTIFICATIONS,)))
        consuming = await connection.open_consuming("heard", 1000)
        found: list[Delivery] = []
        while len(found) < count:
            found += await consuming.receive()
        await consuming.acknowledge(found[-1].tag, multiple=True)
        await connection.close()
        return found

    broker = MemoryBroker()
    connection = await broker.as_user().connect()
    await connection.declare(Objects((EXCHANGE,), (NOTIFICATIONS,)))
    simulation = simulated_ironic(
        broker.as_user(),
        available_nodes(100),
        IronicSimSettings(sends_at_once_max=1),
        clock_s=loop_clock_s,
        listen=None,
    )
    async with await running(*simulation.parts):
        for node in [*simulation.ironic.nodes.values()]:
            simulation.ironic.set_maintenance(node.uuid, is_on=True)
        found = await received(broker, 200)
        times = [each.parcel.body.partition(b'\\"timestamp\\": ')[2][:30] for each in found]
        assert times == sorted(set(times))
        assert {each.parcel.routing_key for each in found} == {"ironic_versioned_notifications.info"}
        assert {(each.parcel.content_type, each.parcel.persistent) for each in found} == {
            ("application/json", True)
        }

        await asyncio.sleep(1)
        assert (simulation.sender.sent, simulation.sender.lost) == (200, 0)
        broker.restart()
        # The sender notices when messages are lost. The rest is sent to an exchange without bindings.
        simulation.ironic.set_maintenance("node-00000", is_on=False)
        await asyncio.sleep(1)
        assert (simulation.sender.sent, simulation.sender.lost) == (201, 1)
        connection = await broker.as_user().connect()
        await connection.declare(Objects((), (NOTIFICATIONS,)))
        simulation.ironic.set_maintenance("node-00000", is_on=True)
        assert len(await received(broker, 2)) == 2
