"""A daemon reads nodes from a simulated Ironic while rows, clocks and Ironic itself change."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from engine.inventories import ConsumerId, ProviderId
from ironic_sync.applying import NodeWriter
from ironic_sync.core.notifications import AllocationNotified, NodeNotified
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
from tests.contracts.stage import until
from tests.ironic_clients.nodes import create, delete
from tests.stores_in_memory import MemoryIronicStore

pytestmark = pytest.mark.asyncio

TERMS = NodePolicy(cells=CellMap(default="c1"), standard_traits=frozenset(), can_read=True)
# Nothing happens because time passes: all that is read again is read because of something.
RARELY = DaemonRules(sweep_s=3600.0, doubts_s=3600.0, changes_s=3600.0, belief=Belief(few=2))
REST = RestLimits(tries_max=1)
HOUR_S, HOUR_US, SECOND_US = 3600.0, 3_600_000_000, 1_000_000
T0_US = 1_795_159_882_000_000
Deed = Callable[[httpx.Request], Awaitable[object]]


class Wire(httpx.AsyncBaseTransport):
    def __init__(self, ironic: SimulatedIronic) -> None:
        self._inner = IronicTransport(ironic)
        self.asked: list[str] = []
        # What happens once, after Ironic has made up its answer to a request of this path, and before it arrives.
        self.meanwhile: dict[str, Deed] = {}
        self.fails: dict[str, int] = {}
        # Paths, or the whole API as "", that fail again and again: by this status, or 0 for no answer at all.
        self.breaks: dict[str, int] = {}
        # Paths of nodes that Ironic does not know, it says.
        self.missing: set[str] = set()
        self.answers: dict[str, object] = {}
        self.says: Callable[[dict[str, Any]], None] = lambda _: None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(path)
        if (status := self.breaks.get("", self.breaks.get(path, self.fails.pop(path, None)))) is not None:
            await asyncio.sleep(0 if status else 1e6)
            return httpx.Response(status, request=request)
        if path in self.missing:
            return httpx.Response(404, json={"error_message": "Node could not be found."}, request=request)
        if (said := self.answers.get(path)) is not None:
            return httpx.Response(200, json=said, request=request)
        answer = await self._inner.handle_async_request(request)
        body = json.loads(await answer.aread())
        self.says(body)
        if (deed := self.meanwhile.pop(path, None)) is not None:
            await deed(request)
        return httpx.Response(answer.status_code, json=body, request=request)


class Place(Membership):
    """Of the ring, only what this daemon owns matters here."""

    def __init__(self, store: MemoryIronicStore, settings: DaemonRules, nodes: Sequence[ProviderId]) -> None:
        super().__init__(store, "d1", "d1-1", settings)
        self._owned = dict.fromkeys(nodes, 1)

    def gain(self, epoch: int) -> list[Owned]:
        """It notices that all nodes were given to it."""
        self._owned = dict.fromkeys(self._owned, epoch)
        return [Owned(each, self.name, epoch) for each in self._owned]


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
        self.writer = NodeWriter(self.store, TERMS, skew_us=2 * SECOND_US, clock_us=lambda: self.at_us)
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
        running = asyncio.create_task(self.sweeper.run())
        await self.until_swept(1)
        self.wire.asked.clear()
        try:
            yield
        finally:
            await self.sweeper.stop()
            await running
            await self.api.close()

    async def until_swept(self, times: int) -> None:
        await until(lambda: self.sweeper.sweeps >= times, f"{times} sweeps")

    async def sweep(self) -> None:
        before = self.sweeper.sweeps
        self.sweeper.gap("the test wants it")
        await self.until_swept(before + 1)

    async def hear(self, node: ProviderId, **fields: object) -> None:
        """A notification that was under way since before Ironic was asked."""
        known = self.rows[node].node
        assert known is not None
        said = NodeNotified(
            node=structs.replace(known, **fields),
            at_us=self.rows[node].read_at_us + 5 * SECOND_US,
            publisher="ironic-api.a",
            kind="power_set",
        )
        await self.writer.hear([said])

    def is_in_maintenance(self, node: ProviderId) -> bool:
        known = self.rows[node].node
        return known is not None and known.maintenance

    def are_deleted(self, nodes: Sequence[ProviderId]) -> bool:
        return all(self.rows[node].is_deleted for node in nodes)

    def hide(self, hidden: set[ProviderId]) -> None:
        """From lists, and by 404."""
        names = {str(each) for each in hidden}

        def say(body: dict[str, Any]) -> None:
            if "nodes" in body:
                body["nodes"] = [each for each in body["nodes"] if each["uuid"] not in names]

        self.wire.says = say


def path_of(node: ProviderId) -> str:
    return f"/v1/nodes/{node}"


LIST = "/v1/nodes"


async def test_a_node_that_is_written_while_the_list_is_read_is_read_again_by_itself() -> None:
    stand = Stand(3)
    node = stand.ids[1]
    async with stand.running():
        # No word of it comes.
        stand.ironic.set_maintenance(str(node), is_on=True)
        stand.wire.meanwhile[LIST] = lambda _: stand.hear(node, power_state="power on")

        await stand.sweep()

        await until(lambda: stand.is_in_maintenance(node), "what Ironic says is on the row")
        assert stand.wire.asked.count(path_of(node)) == 1


async def test_a_node_in_doubt_that_is_written_while_it_is_read_is_read_once_more() -> None:
    stand = Stand(3)
    node = stand.ids[1]
    async with stand.running():
        stand.ironic.set_maintenance(str(node), is_on=True)
        stand.wire.meanwhile[path_of(node)] = lambda _: stand.hear(node, power_state="power on")

        await stand.writer.change({node: lambda row: structs.replace(row, doubts=("why not",))})

        await until(lambda: stand.is_in_maintenance(node) and not stand.rows[node].doubts, "it is settled")
        assert stand.wire.asked == [path_of(node)] * 2


async def test_a_sweep_for_all_daemons_that_fails_is_repeated_for_all_of_them() -> None:
    stand = Stand(6)
    async with stand.running(owners=("d1", "d2")):
        for node in stand.ids:
            stand.ironic.set_maintenance(str(node), is_on=True)
        stand.wire.fails[LIST] = 503

        await stand.sweep()

        assert LIST not in stand.wire.fails, "Ironic was away once"
        assert all(map(stand.is_in_maintenance, stand.ids))


CHANGES = "/v1/nodes/detail"
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
            await until(lambda wanted=wanted: stand.is_in_maintenance(own[0]) is wanted, "a change is found")  # type: ignore[misc]
        assert not stand.is_in_maintenance(others[0]), "its owner looks itself"
        assert stand.sweeper.sweeps == 1
        assert LIST not in stand.wire.asked


async def test_a_node_that_was_created_without_a_notification_and_never_changed_is_found_soon() -> None:
    stand = Stand(300, LOOKING)
    async with stand.running():
        await until(lambda: stand.sweeper.change_looks >= 1, "the first look")
        for ahead_s in (0, 60):
            stand.ironic_at_s += ahead_s
            made = create(stand.ironic, {"driver": "fake-hardware"})
            assert made.updated_at is None
            new = ProviderId(UUID(made.uuid))
            await until(lambda new=new: new in stand.rows, "it is found")  # type: ignore[misc]
        assert stand.sweeper.sweeps == 1

        # Nodes that were created together and are known are not listed at each look.
        stand.wire.asked.clear()
        looks = stand.sweeper.change_looks
        await until(lambda: stand.sweeper.change_looks >= looks + 3, "some looks")
        assert len(stand.wire.asked) <= 4 * (stand.sweeper.change_looks - looks + 1)


async def test_a_look_for_changed_nodes_asks_for_one_node_if_none_has_changed() -> None:
    stand = Stand(50, LOOKING)
    async with stand.running():
        stand.ironic.set_maintenance(str(stand.ids[7]), is_on=True)
        await until(lambda: stand.is_in_maintenance(stand.ids[7]), "the change is found")
        # As long as the overlap lasts, the change is looked at again.
        stand.ironic_at_s += 60
        stand.ironic.set_maintenance(str(stand.ids[8]), is_on=True)
        await until(lambda: stand.is_in_maintenance(stand.ids[8]), "the change is found")
        sizes: list[int] = []
        stand.wire.says = lambda body: sizes.append(len(body["nodes"])) if "nodes" in body else None
        stand.wire.asked.clear()
        looks = stand.sweeper.change_looks
        await until(lambda: stand.sweeper.change_looks >= looks + 4, "some looks")

        assert {*stand.wire.asked} == {CHANGES}
        assert max(sizes[0::2]) == 1


async def test_changes_are_looked_for_from_where_the_last_look_succeeded() -> None:
    stand = Stand(3, LOOKING)
    async with stand.running():
        await until(lambda: stand.sweeper.change_looks >= 1, "the first look")
        for number in range(3):
            stand.wire.fails[CHANGES] = 503
            stand.ironic_at_s += 60
            stand.at_us += 60 * SECOND_US
            stand.ironic.set_maintenance(str(stand.ids[number]), is_on=True)
            await until(lambda: CHANGES not in stand.wire.fails, "Ironic was away")

        await until(lambda: all(map(stand.is_in_maintenance, stand.ids)), "all changes are found")


async def test_nodes_are_seen_in_an_epoch_when_their_owner_reads_them_and_knows_that_they_are_its_own() -> (
    None
):
    """The ring finds nodes that it was given among those that are not read."""
    stand = Stand(4)
    async with stand.running(owners=("d1", "d2")):
        for node in stand.ids:
            await stand.writer.change({node: lambda row: structs.replace(row, epoch=2, doubts=("why not",))})
        await until(lambda: not any(row.doubts for row in stand.rows.values()), "all are read")
        await stand.sweep()
        assert {row.seen_epoch for row in stand.rows.values()} == {1}

        stand.sweeper.gained(stand.place.gain(2))
        await until(lambda: max(row.seen_epoch for row in stand.rows.values()) == 2, "they are read again")
        await stand.sweep()

        await until(
            lambda: not any(row.owner == "d1" and row.needs_read for row in stand.rows.values()), "all"
        )


async def test_a_node_that_was_gained_and_lost_again_is_not_read() -> None:
    stand = Stand(4)
    async with stand.running():
        first, second, *_ = stand.ids
        stand.sweeper.gained([Owned(each, "d1", 1) for each in (first, second)])
        stand.sweeper.lost([first])
        await until(lambda: bool(stand.wire.asked), "the other is read")

        assert stand.wire.asked == [path_of(second)]


async def test_the_node_of_an_allocation_is_read_also_when_ironic_answers_only_the_second_time() -> None:
    stand = Stand(3)
    node, allocation = stand.ids[1], ConsumerId(UUID(int=77))
    path = f"/v1/allocations/{allocation}"
    said = AllocationNotified(allocation=allocation, node=None, kind="update")
    async with stand.running():
        stand.ironic.patch(str(node), [{"op": "add", "path": "/instance_uuid", "value": str(allocation)}])
        stand.wire.fails[path] = 503
        stand.wire.answers[path] = {"uuid": str(allocation), "node_uuid": str(node), "state": "active"}

        stand.sweeper.look_into([said])

        def is_known() -> bool:
            known = stand.rows[node].node
            return known is not None and known.instance_uuid == allocation

        await until(is_known, "the node is known to be taken")
        assert stand.wire.asked == [path, path, path_of(node)]
        stand.sweeper.gained([Owned(stand.ids[0], "d1", 1)])
        await until(lambda: len(stand.wire.asked) > 3, "another node is read")
        assert stand.wire.asked.count(path) == 2, "the allocation is not asked for again"


async def test_a_node_that_cannot_be_read_from_the_list_is_not_missing() -> None:
    stand = Stand(3)
    broken = stand.ids[0]

    def say(body: dict[str, Any]) -> None:
        for each in body.get("nodes", ()):
            if each["uuid"] == str(broken):
                each["provision_state"] = 5

    async with stand.running():
        stand.wire.says = say
        await stand.sweep()
        await stand.sweep()

    assert stand.wire.asked == [LIST] * 2
    assert NOT_LISTED not in stand.rows[broken].doubts


async def test_a_node_that_is_back_is_no_longer_deleted_nor_missing_though_nothing_else_differs() -> None:
    stand = Stand(4)
    async with stand.running():
        deleted, missing, doubted, unseen = stand.ids
        stand.wire.fails |= dict.fromkeys(map(path_of, stand.ids), 503)
        stand.place.gain(2)
        await stand.writer.change(
            {
                deleted: lambda row: structs.replace(row, is_deleted=True),
                missing: lambda row: structs.replace(row, missing_since_us=T0_US),
                doubted: lambda row: structs.replace(row, is_doubted=True),
                unseen: lambda row: structs.replace(row, epoch=2),
            }
        )

        await stand.sweep()

        def is_settled(row: NodeRow) -> bool:
            return not (row.is_deleted or row.missing_since_us or row.needs_read)

        await until(lambda: all(map(is_settled, stand.rows.values())), "the list settles all of it")


async def test_nodes_that_go_a_few_at_a_time_are_held_as_if_they_went_at_once() -> None:
    stand = Stand(20)
    hidden: set[ProviderId] = set()
    stand.hide(hidden)
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


async def test_a_loss_that_was_not_true_counts_for_nothing_when_a_node_is_truly_lost() -> None:
    stand = Stand(10)
    async with stand.running():
        for wave in (0, 2):
            lost = stand.ids[wave : wave + 2]
            stand.hide({*lost})
            stand.wire.missing.update(map(path_of, lost))
            await stand.sweep()
            await until(partial(stand.are_deleted, lost), "they are believed to be gone")
            stand.hide(set())
            stand.wire.missing.clear()
            await stand.sweep()
            await until(lambda: not any(row.is_deleted for row in stand.rows.values()), "they are back")

        last = stand.ids[9]
        stand.ironic.set_maintenance(str(last), is_on=True)
        delete(stand.ironic, str(last))
        await stand.sweep()
        await until(lambda: stand.rows[last].is_deleted or bool(stand.rows[last].missing_since_us), "decided")
        assert stand.rows[last].is_deleted


@pytest.mark.parametrize("jump_us", [6 * HOUR_US, -6 * HOUR_US], ids=["ahead", "back"])
async def test_nodes_are_missing_for_an_hour_of_time_and_not_of_a_clock_that_jumps(jump_us: int) -> None:
    stand = Stand(10)
    async with stand.running():
        lost = stand.ids[:8]
        for node in lost:
            stand.ironic.set_maintenance(str(node), is_on=True)
            delete(stand.ironic, str(node))
        await stand.sweep()
        await until(lambda: all(stand.rows[id_].missing_since_us for id_ in lost), "they are held")

        for jump in (jump_us, 0, -jump_us, 0):
            stand.at_us += jump + 600 * SECOND_US
            stand.at_s += 600.0
            await stand.sweep()
            await asyncio.sleep(0.02)
            assert not any(stand.rows[id_].is_deleted for id_ in lost), "it is not an hour"
        for _ in range(6):
            stand.at_us += 600 * SECOND_US
            stand.at_s += 600.0
            await stand.sweep()
        await until(lambda: all(stand.rows[id_].is_deleted for id_ in lost), "more than an hour is over")
