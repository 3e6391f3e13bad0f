"""A client that follows instances learns their states from events, and not only when it asks again."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.messages.build import InstanceActive, InstanceState
from bus.topology import objects_of
from engine.flavors import InstanceId, RequestId
from moor.client import SentRequest
from moor.client.bus_client import BusClient, InstanceFollower, station_on
from tests.asking import client_of
from tests.unit.examples.values import STATE


@pytest.mark.asyncio
async def test_events_of_other_projects_do_not_look_like_an_interruption() -> None:
    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",)))
    ours = InstanceActive(cell="c1", instance=STATE)
    async with station_on(broker, "moor") as (station, task):
        heard = BusClient(station, task).listen("instance.#", project="p")
        assert await anext(heard) == []
        waiting = asyncio.ensure_future(anext(heard))
        await station.send(InstanceActive(cell="c1", instance=structs.replace(STATE, project="another")))
        await station.send(ours)
        assert await waiting == [ours]
        await heard.aclose()
    await connection.close()


def test_an_event_of_another_cell_than_the_instances_does_not_count() -> None:
    at_api = structs.replace(STATE, cell="c1", state="placed", sequence=7)
    forged = structs.replace(STATE, cell="c2", state="active", sequence=2**61)
    active = structs.replace(at_api, state="active", sequence=8)
    follower = InstanceFollower(None, (STATE.id,))  # type: ignore[arg-type]

    # Before anything is known, any event counts: the API level's state then corrects it.
    follower.hear(InstanceActive(cell="c2", instance=forged))
    follower.take((at_api,))
    assert follower.states == {STATE.id: at_api}
    follower.hear(InstanceActive(cell="c2", instance=forged))
    assert follower.states == {STATE.id: at_api}
    follower.hear(InstanceActive(cell="c1", instance=active))
    follower.take((at_api,))
    assert follower.states == {STATE.id: active}


@pytest.mark.asyncio
async def test_an_order_ends_when_the_schedulers_know_of_the_end() -> None:
    """The cell has told it before, and a scheduler that does not know it refuses the next order."""
    away = structs.replace(STATE, state="offloaded", sequence=STATE.sequence + 1)
    asked: list[InstanceState] = []

    class LateSchedulers(BusClient):
        async def instances(self, *_: Sequence[InstanceId] | str) -> list[InstanceState]:
            asked.append(STATE if len(asked) < 3 else away)
            return asked[-1:]

    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",)))
    async with station_on(broker, "moor") as (station, task):
        moor = client_of(LateSchedulers(station, task))
        sent = SentRequest(
            moor,
            RequestId(STATE.id),
            [STATE.id],
            what="the move",
            project="",
            is_over=lambda _: True,
            why_not_done=lambda _: "",
            known=(away,),
        )
        states = await sent.until_ended(60)
        await moor._watch("").close()  # noqa: SLF001 - as the client closes it
    await connection.close()
    assert states == (away,)
    assert asked[-1] == away
