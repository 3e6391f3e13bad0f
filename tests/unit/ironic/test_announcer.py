"""What the host registry hears of nodes."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message, Parcel
from bus.messages.hosts import HostsAlive, HostsReported
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.sending import Link
from bus.workers.station import Station
from engine.inventories import ProviderId
from ironic_sync.applying import NodeWriter
from ironic_sync.core.notifications import NodeNotified, read
from ironic_sync.core.offers import CellMap
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import NodePolicy
from ironic_sync.events import EventReader, read_inbox
from ironic_sync.membership import Membership
from ironic_sync.reporting import NodeAnnouncer
from ironic_sync.settings import DaemonRules, Inbox
from kit.parts import PartGroup
from tests.contracts.small_world import connected, publish
from tests.contracts.stage import SETTINGS, until
from tests.stores_in_memory import MemoryIronicStore
from tests.unit.ironic.captured import INSTANCE, NODE_ID, a_node, bodies_of

if TYPE_CHECKING:
    from engine.hosts import HostFacts

pytestmark = pytest.mark.asyncio

QUICK = DaemonRules(look_s=0.01, beat_s=0.01)
OTHER = ProviderId(UUID(int=7))


class HeldPublisher(Publisher):
    """A publisher whose reports are under way until the test says that the broker has them."""

    def __init__(self, station: Station) -> None:
        super().__init__(station.consuming, station.settings, "told")
        self.taken = asyncio.get_running_loop().create_future()
        self.alive: set[ProviderId] = set()
        self.is_asked = False
        self.reported: list[HostFacts] = []

    def send_all(self, outgoing: Sequence[Outgoing], kept: object = ()) -> "asyncio.Future[None]":  # noqa: ARG002 - the real one has it
        if outgoing:
            self.is_asked = True
            for each in outgoing:
                if isinstance(each.message, HostsReported):
                    self.reported += each.message.hosts
            return self.taken
        nothing = asyncio.get_running_loop().create_future()
        nothing.set_result(None)
        return nothing

    async def send_within(self, seconds: float, messages: Sequence[Message]) -> bool:  # noqa: ARG002 - it is taken at once
        for each in messages:
            if isinstance(each, HostsAlive):
                self.alive.update(each.hosts)
        return True


async def test_a_node_that_is_deleted_while_it_is_reported_gets_no_heartbeats() -> None:
    store = MemoryIronicStore()
    rows = [NodeRow(id=id_, cell="c1", node=a_node(id=id_)) for id_ in (NODE_ID, OTHER)]
    async with store.transaction() as transaction:
        await transaction.save(rows)
    membership = Membership(store, "d1", "1", QUICK)
    publisher = HeldPublisher(Station(MemoryBroker().as_user(), "a-test"))
    announcer = NodeAnnouncer(store, membership, publisher, QUICK)
    parts = PartGroup(membership, announcer)
    running = asyncio.create_task(parts.run())
    try:
        await until(lambda: all(membership.may_act_on(row.id) for row in rows), "both are owned")
        announcer.tell_again(rows)
        await until(lambda: publisher.is_asked, "both are being reported")
        announcer.tell_again([structs.replace(rows[0], is_deleted=True)])
        publisher.taken.set_result(None)
        await until(lambda: OTHER in publisher.alive, "the other one has a heartbeat")
        gone = [NODE_ID]
        await until(lambda: [each.id for each in publisher.reported if each.is_gone] == gone, "it is told")
    finally:
        await parts.stop()
        await running

    assert publisher.alive == {OTHER}


class HeldReads(MemoryIronicStore):
    """A store whose reads of rows by id have what was there when they began, and end when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()
        self.may_end = asyncio.Event()

    async def read(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        rows = await super().read(ids)
        self.is_asked.set()
        await self.may_end.wait()
        return rows


async def test_what_is_written_while_a_gained_node_is_read_is_not_lost() -> None:
    row = NodeRow(id=NODE_ID, cell="c1", epoch=2, node=a_node(id=NODE_ID, instance_uuid=None))
    store = HeldReads()
    async with store.transaction() as transaction:
        await transaction.save([row])
    publisher = HeldPublisher(Station(MemoryBroker().as_user(), "a-test"))
    announcer = NodeAnnouncer(store, Membership(store, "d1", "1", QUICK), publisher, QUICK)
    running = asyncio.create_task(announcer.run())
    try:
        announcer.gained([Owned(id=NODE_ID, owner="d1", epoch=2)])
        await store.is_asked.wait()
        after = structs.replace(row, version=2, node=a_node(id=NODE_ID, instance_uuid=INSTANCE))
        announcer.touch([(row, after)])
        store.may_end.set()
        await until(lambda: publisher.is_asked, "it is reported")
        publisher.taken.set_result(None)
    finally:
        await announcer.stop()
        await running

    (facts,) = publisher.reported
    assert (facts.instances, facts.sequence) == (1, 2)


async def test_what_a_dead_daemon_wrote_is_told_when_its_notification_comes_back() -> None:
    """It died after it had written the row of another one's node, and before it told of it."""
    broker, store, inbox = MemoryBroker().as_user(), MemoryIronicStore(), Inbox(creates_exchange=True)
    policy = NodePolicy(cells=CellMap(default="c1"), standard_traits=frozenset(), can_read=False)
    active = next(body for body in bodies_of("13_deploy_as_nova") if _has_instance(read(body)))
    link = Link(broker, SETTINGS)
    async with aclosing(read_inbox(link, inbox, settings=SETTINGS)) as batches:
        assert (await anext(batches)).gap
        async with connected(broker) as ironic:
            await publish(ironic, Parcel(inbox.exchange, "ironic_versioned_notifications.info", active))
        (heard,) = (await anext(batches)).messages
        notification = read(heard.body)
        assert isinstance(notification, NodeNotified)
        await NodeWriter(store, policy, clock_us=lambda: notification.at_us).hear([notification])
    (row,) = (await store.read([notification.node.id])).values()
    writer = NodeWriter(store, policy, clock_us=lambda: notification.at_us)
    publisher = HeldPublisher(Station(broker, "a-test"))
    announcer = NodeAnnouncer(store, Membership(store, "d2", "1", QUICK), publisher, QUICK)
    writer.listen_to_changes(announcer.touch)
    events = EventReader(
        link,
        inbox,
        writer,
        publisher,
        name="d2",
        settings=SETTINGS,
        on_gap=lambda _: None,
        on_allocations=lambda _: None,
        on_came_back=announcer.tell_again,
    )
    parts = PartGroup(events, announcer)
    running = asyncio.create_task(parts.run())
    try:
        await until(lambda: publisher.is_asked, "it is reported")
        publisher.taken.set_result(None)
    finally:
        await parts.stop()
        await running
        await link.close()

    (facts,) = publisher.reported
    assert (facts.id, facts.instances, facts.sequence) == (row.id, 1, row.version)


def _has_instance(notification: object) -> bool:
    return isinstance(notification, NodeNotified) and notification.node.instance_uuid is not None
