"""Contract of the conductor's stores: rows are read as they were written, and nothing is half done or done twice."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import AttemptFailed, InstanceDeleted, InstanceState
from bus.messages.cell import DestroyInstance, PlaceInCell, SpawnInstance
from bus.messages.hosts import SetHostInCell
from bus.messages.placement import ReleaseClaim
from bus.workers.handlers import OutboxKey
from cell_conductor.core.rows import CellHost, Cleanup, HeardHost, HeldClaim, Instance, OutboxMessage, Pending
from cell_conductor.store_sql import SILENT_KEPT, ConductorStore
from engine.flavors import Flavor, InstanceId, RequestId
from engine.hosts import HostMode, HostSetting
from engine.inventories import (
    Choice,
    ConsumerId,
    GroupId,
    PlaceRule,
    ProviderId,
    ResourceAmount,
    ServerGroup,
    Share,
)
from kit.errors import Transient
from tests.contracts.stores import STORES, open_conductor_store, open_conductor_stores, undone
from tests.running import once

EACH_STORE = pytest.mark.parametrize("kind", STORES)

NOON = datetime(2026, 3, 4, 12, 0, 0, 123456, tzinfo=UTC)
HOST = ProviderId(UUID(int=77))
SHARE = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=2),))


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def instance_id(number: int) -> InstanceId:
    return InstanceId(ConsumerId(UUID(int=number)))


def a_row(number: int, *, due_s: float | None = None, outbox: tuple[Pending, ...] = ()) -> Instance:
    return Instance(
        id=instance_id(number),
        request_id=RequestId(UUID(int=1000 + number)),
        state="building",
        changed_at=NOON,
        attempt=1,
        state_ends_at=None if due_s is None else later(due_s),
        sequence=outbox[-1].sequence if outbox else 100,
        outbox=outbox,
    )


def release(number: int) -> ReleaseClaim:
    return ReleaseClaim(cell="c1", consumer=instance_id(number), attempt=1, issued_at=NOON)


def pending(number: int, *sequences: int, at: datetime = NOON) -> tuple[Pending, ...]:
    return tuple(Pending(sequence, at, release(number)) for sequence in sequences)


def everything() -> Instance:
    """A row with a value in every field."""
    host = Choice(name="h1", share=SHARE)
    number = instance_id(1)
    order = PlaceInCell(
        cell="c1",
        instance=number,
        request_id=RequestId(UUID(int=1001)),
        sequence=2,
        attempt=1,
        issued_at=NOON,
        ends_by=later(600),
        flavor=Flavor(name="small", vcpus=2, ram_mb=512, extra_specs={"trait:CUSTOM_X": "required"}),
        chosen=host,
        alternates=(host, host),
        image_properties={"os": "plan9"},
        group=ServerGroup(
            id=GroupId(UUID(int=3)),
            policy="anti-affinity",
            rules=(PlaceRule(level=4, policy="anti-affinity", max_members=2),),
        ),
    )
    words: tuple[OutboxMessage, ...] = (
        SpawnInstance(
            cell="c1", instance=number, attempt=2, host=HOST, flavor=order.flavor, share=SHARE, name="x"
        ),
        DestroyInstance(cell="c1", instance=number, attempt=1, host=HOST),
        release(1),
        InstanceDeleted(
            cell="c1",
            instance=InstanceState(
                id=number, request_id=order.request_id, sequence=104, state="deleted", changed_at=NOON
            ),
        ),
    )
    return Instance(
        id=number,
        request_id=order.request_id,
        state="swapping",
        changed_at=NOON,
        order=order,
        attempt=1,
        host=host,
        alternates=(host,),
        was_silent=True,
        tries=3,
        failures=(AttemptFailed(attempt=1, host="h1", reason="no image"),),
        reason="why",
        cleanups=(Cleanup(1, HOST, (HeldClaim(number, 1),)),),
        state_ends_at=later(60),
        remind_at=later(30),
        sequence=104,
        outbox=tuple(Pending(101 + n, NOON, word) for n, word in enumerate(words)),
    )


async def save(
    store: ConductorStore, *rows: Instance, forgotten: tuple[InstanceId, ...] = ()
) -> tuple[OutboxKey, ...]:
    """Save rows with their new messages; where the store keeps these."""
    async with store.transaction() as tx:
        before = await tx.load([row.id for row in rows])
        said = [
            (row.id.bytes, each.sequence)
            for row in rows
            for each in row.outbox
            if row.id not in before or each not in before[row.id].outbox
        ]
        kept = await tx.save(rows, forgotten, said)
    return () if kept is None else (kept,)


async def confirm(store: ConductorStore, *said: OutboxKey) -> None:
    await once(store.transaction, lambda tx: store.clear(tx, said))


async def due(store: ConductorStore, now: datetime, limit: int = 10) -> list[int]:
    return [each.int for each in await once(store.transaction, lambda tx: tx.take_due(now, limit))]


@EACH_STORE
async def test_a_row_is_found_again_as_it_was(kind: str) -> None:
    async with open_conductor_store(kind) as store:
        row = everything()
        await save(store, row)

        assert await store.read([row.id, instance_id(2)]) == [row]
        assert await once(store.transaction, lambda tx: tx.load([row.id, instance_id(2)])) == {row.id: row}


@EACH_STORE
async def test_nothing_of_a_transaction_that_fails_is_saved(kind: str) -> None:
    async with open_conductor_store(kind) as store:
        kept = await save(store, a_row(1, outbox=pending(1, 101)))

        async with undone(store.transaction()) as tx:
            await tx.load([instance_id(1)])
            changed = structs.replace(a_row(1), state="active")
            await tx.save([changed, a_row(2)], [], [(instance_id(2).bytes, 101)])
            await store.clear(tx, kept)

        assert await store.read([instance_id(1), instance_id(2)]) == [a_row(1, outbox=pending(1, 101))]
        assert await store.pending() == [(*kept, release(1))]


@EACH_STORE
async def test_rows_are_taken_when_they_are_due_the_longest_waiting_first(kind: str) -> None:
    async with open_conductor_store(kind) as store:
        await save(store, a_row(1, due_s=3), a_row(2, due_s=1), a_row(3, due_s=2), a_row(4))

        assert await due(store, later(0.999999)) == []
        assert await due(store, later(1)) == [2]
        assert await due(store, later(5), limit=2) == [2, 3]
        assert await due(store, later(5)) == [2, 3, 1]


@EACH_STORE
async def test_what_was_said_is_kept_until_it_is_confirmed(kind: str) -> None:
    now = NOON
    async with open_conductor_store(kind, clock=lambda: now) as store:
        (first,) = await save(store, a_row(1, outbox=pending(1, 101)), a_row(2, outbox=pending(2, 101, 102)))
        (second,) = await save(store, a_row(1, outbox=pending(1, 101, 102)))
        expected = [(first, release(1)), (first, release(2)), (first, release(2)), (second, release(1))]
        assert sorted(await store.pending(), key=str) == sorted(expected, key=str)

        await confirm(store, first)
        now = later(10)

        assert await store.pending() == [(second, release(1))]
        stored = await store.read([instance_id(1), instance_id(2)])
        assert [[each.sequence for each in row.outbox] for row in stored] == [[101, 102], [101, 102]]
        rows = await once(store.transaction, lambda tx: tx.load([instance_id(1), instance_id(2)]))
        assert [[each.sequence for each in rows[row.id].outbox] for row in stored] == [[102], []]
        assert [row.sequence for row in rows.values()] == [102, 102]
        (third,) = await save(store, a_row(2, outbox=pending(2, 103)))
        await confirm(store, third, second)
        assert await store.pending() == []


@EACH_STORE
async def test_what_one_process_said_is_kept_by_another_until_the_first_has_it_confirmed(kind: str) -> None:
    async with open_conductor_stores(kind, ("c1", "c1")) as (one, other):
        row = structs.replace(everything(), state="building", outbox=pending(1, 101))
        (first,) = await save(one, row)
        (second,) = await save(other, structs.replace(row, outbox=pending(1, 101, 102), sequence=102))

        async def kept_by(store: ConductorStore) -> list[int]:
            rows = await once(store.transaction, lambda tx: tx.load([row.id]))
            return [each.sequence for each in rows[row.id].outbox]

        assert await kept_by(other) == await kept_by(one) == [101, 102]
        await confirm(one, first)
        assert await kept_by(other) == await kept_by(one) == [102]
        await confirm(other, second)
        assert await kept_by(other) == await kept_by(one) == []


@EACH_STORE
async def test_what_another_process_has_confirmed_is_known_when_a_row_of_it_is_read(kind: str) -> None:
    async with open_conductor_stores(kind, ("c1", "c1")) as (one, other):
        row = structs.replace(everything(), state="building", outbox=pending(1, 101))
        (kept,) = await save(one, row)
        await save(other, a_row(2, outbox=pending(2, 101)))
        # As a sweep that has sent it again.
        await confirm(other, kept)

        assert [*await once(one.transaction, lambda tx: tx.load([instance_id(2)]))] == [instance_id(2)]
        assert await once(one.transaction, lambda tx: tx.load([row.id])) == {
            row.id: structs.replace(row, outbox=())
        }


async def test_a_process_reads_no_notes_for_the_rows_that_it_wrote_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Notes come and go with each batch: PostgreSQL reads past those that are gone until it vacuums their table."""
    async with open_conductor_stores("sqlite", ("c1", "c1")) as (one, other):
        row = structs.replace(everything(), state="building", outbox=pending(1, 101))
        await save(one, row)
        monkeypatch.setattr("cell_conductor.store_sql.NOTES", None)

        assert await once(one.transaction, lambda tx: tx.load([row.id])) == {row.id: row}
        with pytest.raises(AttributeError, match="fetch"):
            await once(other.transaction, lambda tx: tx.load([row.id]))


@EACH_STORE
async def test_at_its_start_a_process_says_everything_and_later_not_what_was_said_just_now(kind: str) -> None:
    now = NOON
    async with open_conductor_store(kind, clock=lambda: now) as store:
        (kept,) = await save(store, a_row(1, outbox=pending(1, 101)))
        assert await store.pending() == [(kept, release(1))]

        now = later(4)
        assert await store.pending() == []
        now = later(6)
        assert await store.pending() == [(kept, release(1))]


@EACH_STORE
async def test_of_two_processes_that_meet_a_new_instance_one_is_first(kind: str) -> None:
    async with open_conductor_stores(kind, ("c1", "c1")) as (one, other):

        async def meet(store: ConductorStore, attempt: int) -> None:
            async with store.transaction() as tx:
                if not await tx.load([instance_id(1)]):
                    await tx.save([structs.replace(a_row(1), attempt=attempt)], [], [])

        outcomes = await asyncio.gather(meet(one, 1), meet(other, 2), return_exceptions=True)

        (row,) = await one.read([instance_id(1)])
        assert all(outcome is None or isinstance(outcome, Transient) for outcome in outcomes)
        assert outcomes[row.attempt - 1] is None


@EACH_STORE
async def test_processes_that_count_on_one_row_lose_nothing(kind: str) -> None:
    async with open_conductor_stores(kind, ("c1", "c1")) as stores:
        await save(stores[0], a_row(1))

        async def count(store: ConductorStore) -> None:
            async with store.transaction() as tx:
                (row,) = (await tx.load([instance_id(1)])).values()
                await tx.save([structs.replace(row, tries=row.tries + 1)], [], [])

        await asyncio.gather(*(count(stores[n % 2]) for n in range(20)))

        assert (await stores[0].read([instance_id(1)]))[0].tries == 20


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_cells_that_share_a_database_do_not_see_each_other(kind: str) -> None:
    async with open_conductor_stores(kind, ("c1", "c2")) as (one, other):
        await save(one, a_row(1, due_s=0, outbox=pending(1, 101)))

        assert await other.read([instance_id(1)]) == []
        assert await due(other, NOON) == []
        assert await other.pending() == []
        await save(other, a_row(1))
        await save(other, forgotten=(instance_id(1),))
        assert len(await one.read([instance_id(1)])) == 1


def a_host(number: int, mode: HostMode, setting: int, *, cleaned: int = 0) -> CellHost:
    word = SetHostInCell(
        cell="c1",
        host=ProviderId(UUID(int=number)),
        name=f"h{number}",
        setting=HostSetting(mode=mode, reason="smoke", by="moor-operator", at=NOON, number=setting),
        must_clean=True,
    )
    return CellHost(word, cleaned)


async def set_hosts(store: ConductorStore, *hosts: CellHost) -> None:
    async with store.transaction() as tx:
        await tx.lock_hosts([host.word.host for host in hosts])
        await tx.save_hosts(hosts)


@EACH_STORE
async def test_hosts_that_were_set_are_read_as_they_were_written_by_their_own_cell(kind: str) -> None:
    async with open_conductor_stores(kind, ("c1", "c2")) as (ours, other):
        await set_hosts(ours, a_host(1, "dead", 1), a_host(2, "down", 1))
        await set_hosts(ours, a_host(1, "up", 2, cleaned=2))
        await set_hosts(other, a_host(1, "draining", 9))

        found = {each.word.name: each for each in await ours.hosts()}
        assert found == {"h1": a_host(1, "up", 2, cleaned=2), "h2": a_host(2, "down", 1)}
        locked = await once(
            ours.transaction, lambda tx: tx.lock_hosts([ProviderId(UUID(int=2)), ProviderId(UUID(int=3))])
        )
        assert locked == {ProviderId(UUID(int=2)): a_host(2, "down", 1)}


@EACH_STORE
async def test_each_write_of_a_host_is_counted_in_its_own_cell_by_every_process(kind: str) -> None:
    async with open_conductor_stores(kind, ("c1", "c1", "c2")) as (ours, same, other):
        assert await ours.host_writes() == 0
        await set_hosts(ours, a_host(1, "dead", 1), a_host(2, "down", 1))
        await set_hosts(same, a_host(1, "up", 2))
        await set_hosts(other, a_host(1, "draining", 9))

        assert [await store.host_writes() for store in (ours, same, other)] == [3, 3, 1]


@EACH_STORE
async def test_hosts_that_were_heard_are_read_as_last_written_by_their_own_cell_and_go_when_silent_for_long(
    kind: str,
) -> None:
    heard = HeardHost(ProviderId(UUID(int=1)))
    silent = HeardHost(ProviderId(UUID(int=2)), NOON - SILENT_KEPT)
    gone = HeardHost(ProviderId(UUID(int=3)), NOON - SILENT_KEPT - timedelta(microseconds=1))
    async with open_conductor_stores(kind, ("c1", "c2"), lambda: NOON) as (ours, other):
        await ours.save_heard_hosts([silent, heard])
        await other.save_heard_hosts([structs.replace(heard, silent_since=NOON)])
        assert {*await ours.heard_hosts()} == {heard, silent}
        await ours.save_heard_hosts([gone, structs.replace(heard, silent_since=NOON)])
        await ours.save_heard_hosts([heard])
        assert {*await ours.heard_hosts()} == {heard, silent}


@pytest.mark.postgresql
async def test_of_two_processes_that_meet_a_new_host_one_is_first() -> None:
    async with open_conductor_stores("postgresql", ("c1", "c1")) as (first, second):
        async with first.transaction() as tx:
            assert await tx.lock_hosts([ProviderId(UUID(int=1))]) == {}
            await set_hosts(second, a_host(1, "down", 1))
            with pytest.raises(Transient, match="h1 has a row already"):
                await tx.save_hosts([a_host(1, "dead", 1)])
        assert await first.hosts() == [a_host(1, "down", 1)]


@EACH_STORE
async def test_rows_that_wait_are_read_in_pages_by_when_they_are_due(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cell_conductor.store_sql.WAITING_PAGE", 2)
    async with open_conductor_stores(kind, ("c1", "c2")) as (ours, other):
        await save(ours, a_row(3, due_s=5), a_row(1, due_s=7), a_row(2, due_s=7), a_row(4, due_s=60))
        await save(ours, a_row(5), a_row(6, due_s=8, outbox=pending(6, 101)))
        await save(other, a_row(7, due_s=6))
        found: list[tuple[Instance, ...]] = []
        after = None

        while page := await ours.waiting(later(30), after):
            found.append(page)
            due_at = page[-1].due_at
            assert due_at is not None
            after = (due_at, page[-1].id)

        assert [[row.id.int for row in page] for page in found] == [[3, 1], [2, 6]]
        assert found[1][1] == structs.replace(a_row(6, due_s=8), sequence=101)
