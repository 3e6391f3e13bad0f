"""The simulated Ironic as parts of a process: its work, its sender on a broker, its API on a port."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from bus.broker import Delivery
from bus.memory import MemoryBroker
from bus.topology import IRONIC, Binding, Exchange, Objects, Queue, QueueKind
from kit.process import Part
from laboratory.computes.faults import BadScript, load_script
from laboratory.ironic import (
    IronicServer,
    IronicSimSettings,
    SimulatedIronic,
    SimulatedNode,
    available_nodes,
    simulated_ironic,
)
from laboratory.ironic.command import read_listen
from laboratory.ironic.script import IronicScript, Loses, WorkFails
from tests.simulation.loop import run_simulated
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


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.02)


def test_it_does_its_work_when_it_is_due() -> None:
    async def scenario() -> list[tuple[float, str]]:
        ironic = SimulatedIronic(available_nodes(2), loop_clock_s, lambda *_: None)
        async with await running(ironic):
            began_s = loop_clock_s()
            assert isinstance(ironic.provision("node-00000", "active"), SimulatedNode)
            await asyncio.sleep(1)
            assert isinstance(ironic.provision("node-00001", "active"), SimulatedNode)
            seen = []
            for pause_s in (0.5, 1.0, 1.0):
                await asyncio.sleep(pause_s)
                states = " ".join(node.provision_state for node in ironic.nodes.values())
                seen.append((round(loop_clock_s() - began_s, 1), states))
        return seen

    assert run_simulated(scenario()) == [
        (1.5, "deploying deploying"),
        (2.5, "active deploying"),
        (3.5, "active active"),
    ]


def test_notifications_reach_a_queue_in_order_and_a_restarted_broker_has_its_exchange_again() -> None:
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

    async def scenario() -> None:
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

    run_simulated(scenario())


def test_more_unsent_notifications_than_fit_lose_the_oldest() -> None:
    async def scenario() -> tuple[int, int]:
        settings = IronicSimSettings(unsent_max=10)
        simulation = simulated_ironic(
            MemoryBroker().as_user(), available_nodes(10), settings, clock_s=loop_clock_s, listen=None
        )
        for node in [*simulation.ironic.nodes.values()]:
            simulation.ironic.set_maintenance(node.uuid, is_on=True)
        return simulation.sender.unsent, simulation.sender.lost

    assert run_simulated(scenario()) == (10, 10)


@pytest.mark.asyncio
async def test_the_api_is_served_at_an_ipv6_address_too() -> None:
    ironic = SimulatedIronic(available_nodes(3), lambda: STARTED_S, lambda *_: None)
    server = IronicServer(ironic, *read_listen("[::1]:0"))
    assert server.url.startswith("http://[::1]:")
    async with await running(server), httpx.AsyncClient(base_url=server.url) as client:
        assert len((await client.get("/v1/nodes")).json()["nodes"]) == 3


@pytest.mark.asyncio
async def test_the_api_is_served_on_a_port_which_is_closed_while_ironic_takes_no_connections() -> None:
    at_s = STARTED_S
    ironic = SimulatedIronic(available_nodes(3), lambda: at_s, lambda *_: None)
    server = IronicServer(ironic)
    async with await running(server), httpx.AsyncClient(base_url=server.url) as client:

        async def refuses() -> bool:
            try:
                await client.get("/v1/nodes")
            except httpx.TransportError:
                return True
            return False

        async def answers() -> bool:
            return not await refuses()

        await until(answers)
        assert len((await client.get("/v1/nodes")).json()["nodes"]) == 3
        ironic.go_away(60, refuses=True)
        await until(refuses)
        at_s += 61
        await until(answers)
        assert (await client.get("/v1/nodes")).status_code == 200


def test_a_script_is_read_from_a_file_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text(
        'seed = 7\n[[faults]]\nis = "work_fails"\nwork = "deploy"\nprobability = 0.5\n[[faults]]\nis = "loses"\n'
    )
    script = load_script(path, IronicScript)
    assert script.seed == 7
    assert script.faults == (WorkFails(work="deploy", probability=0.5), Loses())

    path.write_text('[[faults]]\nis = "work_fails"\nwork = "nonsense"\n')
    with pytest.raises(BadScript, match="nonsense"):
        load_script(path, IronicScript)
