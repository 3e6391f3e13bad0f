"""A daemon reads nodes from a simulated Ironic while rows, clocks and Ironic itself change."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from operator import is_
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from engine.inventories import ProviderId
from ironic_sync.applying import NodeWriter
from ironic_sync.core.offers import CellMap
from ironic_sync.core.ordering import NOT_LISTED, Belief
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import NodePolicy, settled
from ironic_sync.membership import Membership
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules
from ironic_sync.sweeping import Sweeper
from kit.parts import PartState, statuses
from kit.rest import RestLimits
from laboratory.ironic import IronicTransport, SimulatedIronic, available_nodes
from tests.ironic_clients.nodes import delete
from tests.running import running
from tests.stores_in_memory import MemoryIronicStore
from tests.unit.ironic.deployer_stand import alone
from tests.waiting import until

TERMS = NodePolicy(cells=CellMap(default="c1"), standard_traits=frozenset(), can_read=True)
# Nothing happens because time passes: all that is read again is read because of something.
RARELY = DaemonRules(sweep_s=3600.0, doubts_s=3600.0, changes_s=3600.0, belief=Belief(few=2))
REST = RestLimits(tries_max=1)
HOUR_S, HOUR_US, SECOND_US = 3600.0, 3_600_000_000, 1_000_000
T0_US = 1_795_159_882_000_000


class Wire(httpx.AsyncBaseTransport):
    def __init__(self, ironic: SimulatedIronic) -> None:
        self._inner = IronicTransport(ironic)
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        return await self._inner.handle_async_request(request)


class Place(Membership):
    """Of the ring, only what this daemon owns matters here."""

    def __init__(self, store: MemoryIronicStore, settings: DaemonRules, nodes: Sequence[ProviderId]) -> None:
        super().__init__(store, "d1", "d1-1", settings)
        self._owned = dict.fromkeys(nodes, 1)


class Stand:
    def __init__(self, count: int = 10, settings: DaemonRules = RARELY) -> None:
        nodes = available_nodes(count)
        self.ids = [ProviderId(UUID(each.uuid)) for each in nodes]
        self.ironic_at_s = T0_US / 1e6
        self.ironic = SimulatedIronic(nodes, lambda: self.ironic_at_s, lambda *_: None)
        self.wire = Wire(self.ironic)
        self.api = HttpIronicApi("http://ironic", limits=REST, transport=self.wire)
        self.store = MemoryIronicStore()
        self.at_us, self.at_s = T0_US, 100.0
        self.writer = NodeWriter(
            self.store, TERMS, alone("d1"), skew_us=2 * SECOND_US, clock_us=lambda: self.at_us
        )
        self.place = Place(self.store, settings, self.ids)
        self.sweeper = Sweeper(
            self.api,
            self.writer,
            self.store,
            self.place,
            settings,
            clock_s=lambda: self.at_s,
        )
        self.writer.listen(self.sweeper.touch)
        self.rows: dict[ProviderId, NodeRow] = {}
        self.writer.listen(lambda rows: self.rows.update((row.id, row) for row in rows))

    @asynccontextmanager
    async def running(self, *, owners: Sequence[str] = ("d1",)) -> AsyncIterator[None]:
        """With a row of each node as Ironic has it, of these owners in turn; the first sweep is over."""
        rows = []
        for number, id_ in enumerate(self.ids):
            owner = owners[number % len(owners)]
            node = await self.api.node(id_)
            row = NodeRow(id=id_, owner=owner, epoch=1, seen_epoch=1, node=node, read_at_us=T0_US - HOUR_US)
            rows.append(settled(row, TERMS))
        async with self.store.transaction() as transaction:
            saved = await transaction.save(rows)
        self.rows = {row.id: row for row in saved.rows}
        async with running((self.sweeper,), self.api):
            await self.until_swept(1)
            self.wire.asked.clear()
            yield

    async def until_swept(self, times: int) -> None:
        await until(lambda: self.sweeper.sweeps >= times, f"{times} sweeps")

    async def sweep(self) -> None:
        before = self.sweeper.sweeps
        self.sweeper.gap("the test wants it")
        await self.until_swept(before + 1)

    def is_in_maintenance(self, node: ProviderId) -> bool:
        known = self.rows[node].node
        return known is not None and known.maintenance


LIST = "/v1/nodes"


LOOKING = structs.replace(RARELY, changes_s=0.01)


@pytest.mark.parametrize(
    "ahead_s", [0, -3600, 3600], ids=["clocks agree", "Ironic is behind", "Ironic is ahead"]
)
async def test_a_change_of_which_no_notification_came_is_found_soon(ahead_s: int) -> None:
    stand = Stand(6, LOOKING)
    stand.ironic_at_s = T0_US / 1e6 + ahead_s
    async with stand.running(owners=("d1", "d2")):
        own, others = stand.ids[0::2], stand.ids[1::2]
        stand.ironic.set_maintenance(str(own[2]), is_on=True)
        await until(lambda: stand.is_in_maintenance(own[2]), "the first change is found")
        for _ in range(3):
            stand.ironic_at_s += 60
            stand.at_us += 60 * SECOND_US
            stand.ironic.set_maintenance(str(own[0]), is_on=not stand.is_in_maintenance(own[0]))
            stand.ironic.set_maintenance(str(others[0]), is_on=True)
            wanted = bool(stand.ironic.nodes[str(own[0])].maintenance)
            await until(lambda: stand.is_in_maintenance(own[0]), "a change is found", partial(is_, wanted))
        assert not stand.is_in_maintenance(others[0]), "its owner looks itself"
        assert stand.sweeper.sweeps == 1
        assert LIST not in stand.wire.asked


async def test_nodes_that_go_a_few_at_a_time_are_held_as_if_they_went_at_once() -> None:
    stand = Stand(20)
    async with stand.running():
        for first in (0, 2, 4, 6):
            for node in stand.ids[first : first + 2]:
                stand.ironic.set_maintenance(str(node), is_on=True)
                delete(stand.ironic, str(node))
            await stand.sweep()
            await until(lambda: not any(NOT_LISTED in row.doubts for row in stand.rows.values()), "decided")

        gone = [id_ for id_ in stand.ids if stand.rows[id_].is_deleted]
        held = [id_ for id_ in stand.ids if stand.rows[id_].missing_since_us]
        assert (gone, held) == (stand.ids[:4], stand.ids[4:8])
        assert statuses([stand.sweeper])[-1].state is not PartState.ENDED

        # An hour later those that went are forgotten, and those that were held are believed.
        stand.at_us += HOUR_US
        stand.at_s += HOUR_S
        await stand.sweep()
        await until(lambda: all(stand.rows[id_].is_deleted for id_ in held), "they are believed to be gone")
        last = stand.ids[8:10]
        for node in last:
            stand.ironic.set_maintenance(str(node), is_on=True)
            delete(stand.ironic, str(node))
        await stand.sweep()
        await until(lambda: not any(NOT_LISTED in row.doubts for row in stand.rows.values()), "decided")
        assert all(stand.rows[id_].is_deleted for id_ in last)


def path_of(node: ProviderId) -> str:
    return f"/v1/nodes/{node}"


async def test_a_node_that_was_gained_and_lost_again_is_not_read() -> None:
    stand = Stand(4)
    async with stand.running():
        first, second, *_ = stand.ids
        stand.sweeper.gained([Owned(each, "d1", 1) for each in (first, second)])
        stand.sweeper.lost([first])
        await until(lambda: bool(stand.wire.asked), "the other is read")

        assert stand.wire.asked == [path_of(second)]
