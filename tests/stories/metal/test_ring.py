"""Daemons that share nodes join, drain, stop, die, are suspended and lose their database; each node always has one
owner.

Everything runs on the simulated clock, which is the database's clock and the daemons' own.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import pytest
from msgspec import structs

from engine.inventories import ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.ring import NodeHandover, Owned, Ring
from ironic_sync.core.rows import NodeRow
from ironic_sync.membership import Membership
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore
from kit.errors import Unavailable
from kit.parts import PartState, statuses
from tests.contracts.stores import open_ironic_stores
from tests.simulation.loop import run_simulated, simulated, until_s
from tests.stores_in_memory import MemoryIronicStore
from tests.waiting import until

S = TypeVar("S", bound=MemoryIronicStore)

NOON = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
SETTINGS = DaemonRules(page=20)


class DatabaseWire:
    """The connection from one daemon to the database: it may be slow, break, or block."""

    def __init__(self, store: IronicStore, chance: random.Random | None = None) -> None:
        self._store = store
        self._chance = chance
        self.is_away = False
        self.open = asyncio.Event()
        self.open.set()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def ask(*values: Any, **named: Any) -> Any:
            await self._on_the_way()
            answer = await getattr(self._store, name)(*values, **named)
            # The write takes effect even if its answer is lost.
            await self._on_the_way()
            return answer

        return ask

    async def _on_the_way(self) -> None:
        await self.open.wait()
        if self._chance is not None:
            await asyncio.sleep(self._chance.choice((0.0, 0.01, 0.2)))
            await self.open.wait()
        if self.is_away or (self._chance is not None and self._chance.random() < 0.02):
            raise Unavailable("the database is away")


class Daemon:
    """A membership, and the nodes that it was told it gained and lost."""

    def __init__(
        self,
        store: IronicStore,
        name: str,
        *,
        start: int = 1,
        settings: DaemonRules = SETTINGS,
        chance: random.Random | None = None,
    ) -> None:
        self.name = name
        self.wire = DatabaseWire(store, chance)
        self.nodes: dict[ProviderId, int] = {}
        self.membership = Membership(
            self.wire,  # type: ignore[arg-type]
            name,
            f"{name}-{start}",
            settings,
            listeners=(self,),
            clock_s=asyncio.get_running_loop().time,
            chance=random.Random(f"{name} {start}"),
        )
        self._running = asyncio.create_task(self.membership.run())

    def gained(self, nodes: Sequence[Owned]) -> None:
        assert all(each.owner == self.name for each in nodes)
        assert all(self.nodes.get(each.id, -1) < each.epoch for each in nodes), "nothing is told twice"
        self.nodes |= {each.id: each.epoch for each in nodes}

    def lost(self, nodes: Sequence[ProviderId]) -> None:
        for each in nodes:
            del self.nodes[each]

    def may_act_on(self, node: ProviderId) -> bool:
        return self.membership.may_act_on(node)

    async def stop(self) -> None:
        await self.membership.stop()
        await self._running

    async def kill(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        assert self._running.cancelled(), "it had ended by itself"


def node_id(number: int) -> ProviderId:
    return ProviderId(UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128))


def a_store(kind: type[S]) -> S:
    loop = asyncio.get_running_loop()
    return kind(lambda: NOON + timedelta(seconds=loop.time()))


async def fill(store: IronicStore, count: int = 90) -> None:
    async with store.transaction() as tx:
        await tx.save([NodeRow(id=node_id(number)) for number in range(1, count + 1)])


async def a_ring(kind: type[S], *names: str, count: int = 90) -> tuple[S, list[Daemon]]:
    """Daemons of these names that share so many nodes, five seconds after their start."""
    store = a_store(kind)
    await fill(store, count)
    daemons = [Daemon(store, name) for name in names]
    assert not any(each.membership.may_act() for each in daemons), "none has a lease yet"
    await until_s(5)
    return store, daemons


async def put_instances(store: IronicStore, nodes: Collection[ProviderId]) -> None:
    async with store.transaction() as tx:
        rows = (await tx.load(nodes)).values()
        await tx.save([structs.replace(row, node=Node(id=row.id, instance_uuid=UUID(int=7))) for row in rows])


async def owned_by(store: IronicStore) -> Counter[str]:
    return Counter(each.owner for each in await store.owners())


async def check_all_agree(store: IronicStore, *daemons: Daemon) -> None:
    """Each row has a live owner, and each daemon agrees with the rows."""
    owners = {each.id: each for each in await store.owners()}
    believed = {node: daemon.name for daemon in daemons for node in daemon.nodes}
    assert believed == {id_: each.owner for id_, each in owners.items()}
    for daemon in daemons:
        assert daemon.nodes == dict(daemon.membership.owned)
        assert daemon.nodes == {id_: o.epoch for id_, o in owners.items() if o.owner == daemon.name}
        assert all(map(daemon.may_act_on, daemon.nodes))


class LockedRows(MemoryIronicStore):
    """A daemon that stands still has all rows locked until `are_free`."""

    are_free = True

    async def give(self, moves: Sequence[NodeHandover]) -> tuple[Owned, ...]:
        return await super().give(moves) if self.are_free else ()


@simulated
async def test_rows_that_stay_locked_are_told_of_once_and_taken_over_when_they_are_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    store, (d1, d2) = await a_ring(LockedRows, "d1", "d2")
    await d1.kill()
    store.are_free = False
    caplog.clear()
    await until_s(5 + SETTINGS.lease_s + 100 * SETTINGS.look_s)
    assert len([each for each in caplog.messages if "took over 0 of" in each]) == 1
    store.are_free = True
    await until_s(10 + SETTINGS.lease_s + 100 * SETTINGS.look_s)
    await check_all_agree(store, d2)


@pytest.mark.hits("daemon %r took over %d of %d nodes without a live owner in %.2f s")
@simulated
async def test_the_nodes_of_a_dead_daemon_have_new_owners_as_soon_as_its_lease_is_over() -> None:
    store, (d1, d2, d3) = await a_ring(MemoryIronicStore, "d1", "d2", "d3")
    before = {each.id: each for each in await store.owners()}
    dead = dict(d1.nodes)
    await put_instances(store, list(dead)[:5])
    await d1.kill()
    await until_s(5 + SETTINGS.lease_s - SETTINGS.renew_s - 0.1)
    assert (await owned_by(store))["d1"] == len(dead)
    assert not d1.membership.may_act()
    await until_s(5 + SETTINGS.lease_s + SETTINGS.look_s)

    await check_all_agree(store, d2, d3)
    for now in await store.owners():
        assert now.epoch == before[now.id].epoch + (now.id in dead)
        assert now.owner == before[now.id].owner or now.id in dead


@simulated
async def test_a_daemon_that_joins_is_given_its_share_but_no_node_with_an_instance() -> None:
    store, (d1, d2) = await a_ring(MemoryIronicStore, "d1", "d2", count=200)
    held = [*list(d1.nodes)[:40], *list(d2.nodes)[:40]]
    await put_instances(store, held)
    before = {each.id: each.owner for each in await store.owners()}
    d3 = Daemon(store, "d3")
    await until_s(5 + 3 * SETTINGS.look_s)

    await check_all_agree(store, d1, d2, d3)
    owners = {each.id: each.owner for each in await store.owners()}
    assert all(owners[each] == before[each] for each in held)
    assert {each for each in owners if owners[each] != before[each]} == d3.nodes.keys()
    assert 25 < len(d3.nodes) < 60
    assert all(each.state is PartState.WELL for d in (d1, d2, d3) for each in statuses([d.membership]))

    # When its instance is deleted, the node may move to the owner that the ring gives it.
    async with store.transaction() as tx:
        rows = (await tx.load(held)).values()
        await tx.save([structs.replace(row, node=None) for row in rows])
    await until_s(8 + SETTINGS.balance_s)
    await check_all_agree(store, d1, d2, d3)
    assert held[0] in before
    ring = Ring(await store.members())
    assert all(each.owner == ring.owner_of(each.id) for each in await store.owners())


@pytest.mark.hits(
    "daemon %r lost its lease: it joins again, without its nodes",
    "the lease is over by the database's clock: the daemon joins again",
    "the database does not answer about the lease in time",
)
@simulated
async def test_a_daemon_suspended_longer_than_its_lease_acts_on_none_of_its_nodes() -> None:
    store, (d1, d2) = await a_ring(MemoryIronicStore, "d1", "d2")
    mine = dict(d1.nodes)
    read = await store.read(mine)
    # It is suspended after it decided to give everything away, before it writes that.
    await store.set_draining("d1", draining=True)
    d1.wire.open.clear()
    await until_s(5 + SETTINGS.lease_s - SETTINGS.lease_margin_s)
    assert mine.keys() & {each for each in mine if d1.may_act_on(each)} == set()
    assert (await owned_by(store))["d1"] == len(mine), "its lease is not over yet"
    await until_s(5 + SETTINGS.lease_s + SETTINGS.look_s)
    await check_all_agree(store, d2)

    d1.wire.open.set()
    stale = [NodeHandover(id_, "d1", epoch, "d1") for id_, epoch in mine.items()]
    assert await store.give(stale) == ()
    async with store.transaction() as tx:
        assert {*(await tx.save([*read.values()])).lost} == mine.keys()
    assert not d1.membership.may_act()
    await until_s(25)
    await check_all_agree(store, d1, d2)
    assert d1.nodes, "it joined again, and was given its share"
    assert all(d1.nodes[each] > mine[each] for each in d1.nodes.keys() & mine.keys())


@simulated
async def test_a_daemon_without_its_database_stops_acting_before_its_lease_is_over() -> None:
    store, (d1, d2) = await a_ring(MemoryIronicStore, "d1", "d2")
    before = dict(d1.nodes)
    d1.wire.is_away = True
    await until_s(8)
    assert d1.membership.may_act()
    assert statuses([d1.membership])[0].state is PartState.FAILING
    d1.wire.is_away = False
    await until_s(10)
    assert d1.nodes == before, "its lease had not ended, so it lost nothing"
    d1.wire.is_away = True
    await until_s(10 + SETTINGS.acting_s)
    assert not d1.membership.may_act()
    assert (await owned_by(store))["d1"] == len(before)
    await until_s(25)
    await check_all_agree(store, d2)


@simulated
async def test_a_daemon_that_stops_when_another_has_its_name_leaves_that_one_in_the_ring() -> None:
    store, (old,) = await a_ring(MemoryIronicStore, "d1")
    old.wire.open.clear()
    await until_s(5 + SETTINGS.lease_s + SETTINGS.look_s)
    new = Daemon(store, "d1", start=2)
    await until_s(10 + SETTINGS.lease_s)
    stopping = asyncio.create_task(old.stop())
    await until_s(10 + 2 * SETTINGS.lease_s)
    old.wire.open.set()
    await stopping
    left = [(each.incarnation, each.is_draining) for each in await store.members()]
    assert left == [(new.membership.incarnation, False)]


class RandomFaults:
    """Random faults of daemons, drawn by a seed, with a checker that compares all of them repeatedly."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.settings = DaemonRules(page=7)
        self.alive: list[Daemon] = []
        # Suspended daemons: they continue later, and another daemon may have their name by then.
        self.suspended: list[Daemon] = []
        self.starts = 0

    async def run(self) -> None:
        self.store = a_store(MemoryIronicStore)
        await fill(self.store, 40)
        watching = asyncio.create_task(self._watch())
        for _ in range(60):
            await self._random_fault()
            await asyncio.sleep(self.chance.choice((0.1, 1.0, 5.0, 12.0)))
        await self._heal()
        await asyncio.sleep(60)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert watching.cancelled(), watching.exception()
        await check_all_agree(self.store, *self.alive)
        ring = Ring(await self.store.members())
        rows = await self.store.read([node_id(number) for number in range(1, 41)])
        assert all(row.owner == ring.owner_of(row.id) or row.holds_instance for row in rows.values())

    async def _watch(self) -> None:
        while True:
            for node in map(node_id, range(1, 41)):
                acting = [
                    each.membership.incarnation
                    for each in (*self.alive, *self.suspended)
                    if each.may_act_on(node)
                ]
                assert len(acting) <= 1, f"{acting} all act on {node}"
            await asyncio.sleep(0.15)

    async def _random_fault(self) -> None:
        which = self.chance.randrange(len(self.alive)) if self.alive else None
        match self.chance.choice(("start", "kill", "stop", "stand still", "go on", "away", "drain", "build")):
            case "start" if len(self.alive) < 5:
                self._start()
            case "kill" if which is not None and len(self.alive) > 1:
                await self.alive.pop(which).kill()
            case "stop" if which is not None and len(self.alive) > 1:
                await self.alive.pop(which).stop()
            case "stand still" if which is not None:
                self.suspended.append(self.alive.pop(which))
                self.suspended[-1].wire.open.clear()
            case "go on" if self.suspended:
                self.alive.append(self.suspended.pop(0))
                self.alive[-1].wire.open.set()
            case "away" if which is not None:
                self.alive[which].wire.is_away ^= True
            case "drain" if which is not None:
                draining = self.chance.random() < 0.5
                await self.store.set_draining(self.alive[which].name, draining=draining)
            case "build":
                await put_instances(self.store, [node_id(self.chance.randint(1, 40))])

    def _start(self) -> None:
        self.starts += 1
        name = self.chance.choice(("d1", "d2", "d3", "d4"))
        self.alive.append(
            Daemon(self.store, name, start=self.starts, settings=self.settings, chance=self.chance)
        )

    async def _heal(self) -> None:
        """The network works, and each name has one daemon."""
        self._start()
        daemons, self.suspended = (*self.alive, *self.suspended), []
        self.alive = [*{each.name: each for each in daemons}.values()]
        for daemon in daemons:
            daemon.wire.open.set()
            daemon.wire.is_away = False
            if daemon not in self.alive:
                await daemon.kill()
        for daemon in self.alive:
            await self.store.set_draining(daemon.name, draining=False)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_two_daemons_act_on_a_node_and_in_the_end_each_node_has_an_owner(
    seed: int,
) -> None:
    run_simulated(RandomFaults(seed).run())


def count_of(daemons: Sequence[Daemon]) -> int:
    return sum(len(each.nodes) for each in daemons)


@pytest.mark.postgresql
async def test_on_postgresql_the_nodes_of_a_dead_daemon_have_new_owners() -> None:
    # Only the dead daemon loses its lease, however long the others stand still.
    quick = DaemonRules(lease_s=100.0, look_s=0.05, page=50)
    async with open_ironic_stores("postgresql", 3) as stores:
        await fill(stores[0])
        daemons = [Daemon(store, f"d{n}", settings=quick) for n, store in enumerate(stores)]
        dead, *left = daemons
        await until(lambda: all(each.nodes for each in daemons) and count_of(daemons) == 90, "all are owned")
        await dead.kill()
        assert await stores[0].renew("d0", "d0-1", 0.0)
        await until(lambda: count_of(left) == 90, "all have new owners")
        assert set(await owned_by(stores[1])) == {"d1", "d2"}
        await left[0].stop()
        assert await owned_by(stores[1]) == {"d2": 90}
        await left[1].stop()
        assert [each.name for each in await stores[0].members() if each.is_alive] == []
