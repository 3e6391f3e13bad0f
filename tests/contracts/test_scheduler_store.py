"""Contract of the scheduler's stores: how instances, their history, hosts, cells, applications and groups are kept and found."""

import asyncio
from datetime import datetime, timedelta, timezone
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.audit import AdoptInstance
from bus.messages.build import BuildInstance, InstanceActive
from bus.messages.moves import Change, MovePlace
from bus.messages.projects import KnownApplication
from engine.flavors import Flavor, Image, InstanceId
from engine.hosts import NODE, HostState
from engine.inventories import (
    AggregateId,
    GroupId,
    GroupPolicy,
    PlaceRule,
    ProviderId,
    ResourceAmount,
    ServerGroup,
    Share,
)
from kit.errors import Transient
from scheduler_worker.core.aggregates import KeptAggregate
from scheduler_worker.core.instances.lifecycle import (
    SEQUENCE_AHEAD_MAX,
    adopted_row,
    deleted,
    deleted_unseen,
    heard,
)
from scheduler_worker.core.instances.rows import (
    ACCEPTED,
    DELETED,
    ERROR,
    accepted,
    failed,
)
from scheduler_worker.store_sql import (
    AdoptedRow,
    ChangeQuery,
    GroupQuery,
    HostQuery,
    InstanceQuery,
    InstancesTaken,
    Known,
    KnownCell,
    KnownGroup,
    NewRequest,
    OtherContent,
    OutboxNote,
    SchedulerStore,
)
from scheduler_worker.store_sql.waiting import NUMBERS_KEPT
from tests.contracts.scheduler_rows import (
    LATER,
    NOON,
    a_placed,
    a_request,
    accept,
    an_active,
    confirm,
    delete,
    delete_while_it_is_accepted,
    instance,
    note,
    request_id,
    rows_of,
    save,
    unsaid,
)
from tests.contracts.stores import open_scheduler_store, undone
from tests.running import once


async def test_a_transaction_that_fails_leaves_nothing_behind(store: SchedulerStore) -> None:
    await accept(store, a_request(1))
    (row,) = await rows_of(store, 1)

    async with undone(store.transaction()) as transaction:
        await transaction.accept([a_request(2)])
        ended = [one for one in [failed(row, LATER, reason="no")] if one]
        await transaction.decide(ended)
        await transaction.note([ended])

    assert await rows_of(store, 1, 2) == [row]
    assert await store.unconfirmed(LATER + timedelta(1), None, 10) == []
    (kept,) = await note(store, [row])

    async with undone(store.transaction()) as transaction:
        await transaction.confirm([kept])

    assert [each.kept for each in await store.unconfirmed(LATER, None, 10)] == [kept]
    assert await store.overdue(LATER, 10) == [instance(1)]


async def test_only_what_is_accepted_and_late_is_overdue(store: SchedulerStore) -> None:
    earlier = a_request(3)
    ends_by = LATER - timedelta(minutes=1)
    earlier = structs.replace(earlier, rows=(structs.replace(earlier.rows[0], ends_by=ends_by),))
    await accept(store, a_request(1), a_request(2), earlier)
    await save(store, deleted((await rows_of(store, 2))[0], NOON))

    assert await store.overdue(ends_by - timedelta(seconds=1), 10) == []
    assert await store.overdue(LATER - timedelta(seconds=1), 10) == [instance(3)]
    assert await store.overdue(LATER, 10) == [instance(3), instance(1)]
    assert await store.overdue(LATER, 1) == [instance(3)]


async def test_a_name_may_be_as_long_as_a_request_and_a_number_make_it(store: SchedulerStore) -> None:
    build = BuildInstance(request_id=request_id(1), name="w" * 255, count=2)
    rows = accepted(build, [instance(1), instance(2)], NOON, LATER)
    await accept(store, NewRequest(request_id(1), b"", rows))

    assert [row.id for row in await store.instances(InstanceQuery(name="w" * 255 + "-2"))] == [instance(2)]


async def test_a_request_is_forgotten_when_all_of_it_was_deleted_long_ago_and_has_said_so(
    store: SchedulerStore,
) -> None:
    await accept(store, *(a_request(number, 10 * number, 10 * number + 1) for number in range(1, 6)))
    await delete(store, NOON, 10, 11, 20, 30, 31, 41, 50, 51)
    await delete(store, LATER, 40)
    await confirm(store, *await note(store, await rows_of(store, 10, 11, 20, 31, 40, 41, 50, 51)))

    # 20 has a sibling that is alive, 30 has an unconfirmed message, 40 is too recent.
    assert await store.prune(LATER, 1) == 1
    assert await store.prune(LATER, 10) == 1
    assert await store.prune(LATER, 10) == 0

    assert [row.id.int for row in await store.instances(InstanceQuery())] == [20, 21, 30, 31, 40, 41]
    assert [type(each) for each in await accept(store, a_request(1, 10, 11), a_request(2, 20, 21))] == [
        Known,
        Known,
    ]


async def hear(store: SchedulerStore, *words: InstanceActive) -> int:
    return await once(store.transaction, lambda tx: tx.apply_events(words))


@pytest.mark.parametrize("ahead", [1, 2**31, 2**61 - 2 - SEQUENCE_AHEAD_MAX])
async def test_an_event_with_an_absurd_sequence_is_not_taken_in_passing(
    store: SchedulerStore, ahead: int
) -> None:
    await accept(store, a_placed(a_request(1)))
    before = await rows_of(store, 1)
    absurd = an_active(1, sequence=2 + SEQUENCE_AHEAD_MAX + ahead)

    assert await hear(store, absurd) == 0
    assert await rows_of(store, 1) == before

    assert await hear(store, an_active(1, sequence=2 + SEQUENCE_AHEAD_MAX)) == 1


async def test_what_a_project_has_without_a_host_is_counted_until_it_is_deleted(
    store: SchedulerStore,
) -> None:
    """Not what has a host, nor what is of another project."""

    def of_shop(request: NewRequest, **fields: object) -> NewRequest:
        rows = [
            structs.replace(row, told=structs.replace(row.told, project="shop", **fields))
            for row in request.rows
        ]
        return structs.replace(request, rows=tuple(rows))

    await accept(
        store,
        of_shop(a_request(1)),
        of_shop(a_request(2), state="waiting"),
        of_shop(a_request(3), state="error", cell="cell0"),
        of_shop(a_request(4), state="error", cell="c1"),
        of_shop(a_request(5), state="placed", cell="c1", host="h1"),
        of_shop(a_request(6), state="offloaded", cell="c1"),
        a_request(7),
    )
    await save(store, *(deleted_unseen(instance(number), NOON, "shop") for number in (8, 9, 10)))

    assert await store.unplaced("shop", 10) == (4, 3)
    assert await store.unplaced("shop", 2) == (2, 2)
    assert await store.unplaced("bank", 10) == (0, 0)


async def test_another_request_of_the_same_id_is_told_so_and_changes_nothing(store: SchedulerStore) -> None:
    new = a_request(1)
    await accept(store, new)

    assert await accept(store, a_request(1, digest=b"other"), a_request(2)) == [
        OtherContent(),
        Known(a_request(2).rows),
    ]

    assert await rows_of(store, 1) == list(new.rows)


async def test_a_request_for_anothers_instance_leaves_nothing_behind(store: SchedulerStore) -> None:
    await accept(store, a_request(1, 11, 12))

    assert await accept(store, a_request(2, 12, 13)) == [InstancesTaken((instance(12),))]

    assert await rows_of(store, 13) == []
    new = a_request(2, 14)
    assert await accept(store, new) == [Known(new.rows)]


async def test_a_request_that_was_overtaken_by_a_delete_finds_its_instance_deleted(
    store: SchedulerStore,
) -> None:
    await save(store, deleted_unseen(instance(11), NOON))

    (judged,) = await accept(store, a_request(1, 11, 12))

    assert isinstance(judged, Known)
    assert [row.told.state for row in judged.rows] == [DELETED, ACCEPTED]
    assert judged.rows[0].told.request_id == request_id(1)
    assert await rows_of(store, 11, 12) == list(judged.rows)
    assert [row.told.id for row in await store.instances(InstanceQuery())] == [instance(11), instance(12)]


async def test_of_two_who_accept_the_same_requests_at_once_both_find_the_same(store: SchedulerStore) -> None:
    requests = [a_request(number) for number in range(1, 20)]

    ours, theirs = await asyncio.gather(accept(store, *requests), accept(store, *reversed(requests)))

    assert ours == list(reversed(theirs)) == [Known(each.rows) for each in requests]


async def test_of_two_who_decide_at_once_one_is_told_of_the_other(store: SchedulerStore) -> None:
    requests = [a_request(number) for number in range(1, 20)]
    await accept(store, *requests)

    async def decide(reason: str) -> dict[InstanceId, str]:
        ended = [failed(row, LATER, reason=reason) for each in requests for row in each.rows]
        others = await once(
            store.transaction, lambda tx: tx.decide([row for row in ended if row is not None])
        )
        return {id_: row.told.reason for id_, row in others.items()}

    told = await asyncio.gather(decide("this"), decide("that"))

    rows = await rows_of(store, *range(1, 20))
    assert {row.told.reason for row in rows} < {"this", "that"}
    others = {row.id: row.told.reason for row in rows}
    assert sorted(told, key=len) == [{}, others]


@pytest.mark.postgresql
async def test_a_delete_that_found_no_row_does_not_overwrite_the_request_that_came_meanwhile() -> None:
    """Only where transactions run concurrently: it happened when two workers had deletes and their requests at once."""
    async with open_scheduler_store("postgresql") as store:
        with pytest.raises(Transient):
            await delete_while_it_is_accepted(store)

        (row,) = await store.instances(InstanceQuery(instances=(instance(1),)))
        assert (row.told.request_id, row.told.state) == (request_id(1), ACCEPTED)


async def test_notes_are_read_behind_one_and_until_they_have_so_many_rows(store: SchedulerStore) -> None:
    new = [a_placed(a_request(number)) for number in range(1, 7)]
    rows = [row for each in new for row in each.rows]
    await accept(store, *new)
    first, second, third, fourth = await note(store, rows[1::-1], [rows[2]], rows[3:5], [rows[5]])

    found = [
        OutboxNote(first, tuple(rows[:2])),
        OutboxNote(second, (rows[2],)),
        OutboxNote(third, tuple(rows[3:5])),
        OutboxNote(fourth, (rows[5],)),
    ]
    assert await store.unconfirmed(LATER, None, 100) == found
    assert await store.unconfirmed(LATER, None, 1) == found[:1]
    assert await store.unconfirmed(LATER, None, 3) == found[:2]
    assert await store.unconfirmed(LATER, first, 2) == found[1:3]
    assert await store.unconfirmed(LATER, fourth, 2) == []
    assert await store.unconfirmed(NOON, None, 100) == []


async def test_a_word_that_is_no_news_or_not_of_who_was_placed_is_not_heard_without_looking(
    store: SchedulerStore,
) -> None:
    await accept(store, *(a_placed(a_request(number)) for number in (1, 2, 3, 4)), a_request(5))
    rows = await rows_of(store, 1, 2)
    await save(store, heard(rows[0], an_active(1, sequence=102), LATER), deleted(rows[1], LATER))
    before = await rows_of(store, 1, 2, 3, 4, 5)

    elsewhere, early = an_active(3, cell="c2"), an_active(4, sequence=2)
    assert await hear(store, an_active(1), an_active(2), elsewhere, early, an_active(5), an_active(6)) == 0

    assert await rows_of(store, 1, 2, 3, 4, 5) == before


async def test_what_is_unsaid_is_so_until_it_is_confirmed_by_its_sequence(store: SchedulerStore) -> None:
    await accept(store, a_request(1))
    await save(store, failed((await rows_of(store, 1))[0], NOON, reason="no"))
    (before,) = await rows_of(store, 1)
    assert (before.told.state, before.told.sequence, before.unsaid) == (ERROR, 2, True)
    (first,) = await note(store, [before])
    assert await unsaid(store, NOON) == []
    assert await unsaid(store, LATER) == [before]

    await save(store, deleted(before, NOON))
    (row,) = await rows_of(store, 1)
    (second,) = await note(store, [row])
    await confirm(store, first, first)
    assert await store.unconfirmed(LATER, None, 10) == [OutboxNote(second, (row,))]
    assert await rows_of(store, 1) == [row]

    await confirm(store, second, second)
    assert await store.unconfirmed(LATER, None, 10) == []
    assert not (await rows_of(store, 1))[0].unsaid


HOST = UUID(int=55)
SHARE = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=2),))  # type: ignore[arg-type]


def an_adoption(number: int, of_request: int, place: int) -> AdoptedRow:
    order = AdoptInstance(
        instance=instance(number),
        request_id=request_id(of_request),
        number=place,
        of_cell="c1",
        host="h1",
        share=SHARE,
        state="stopped",
        flavor=Flavor(name="old", vcpus=2),
        created_at=NOON - timedelta(days=3000),
        name="old-1",
        project="shop",
        user="ann",
        image=Image(source="debian"),
    )
    row = adopted_row(
        order, None, 1, NOON, timedelta(minutes=5), spec=b"a spec", kind="", group=None, by="operator"
    )
    return AdoptedRow(row, place, b"digest")


async def adopt(store: SchedulerStore, *rows: AdoptedRow) -> list[UUID]:
    return [*await once(store.transaction, lambda tx: tx.adopt(rows))]


async def test_one_that_is_there_and_a_number_that_is_taken_are_refused_and_the_others_written(
    store: SchedulerStore,
) -> None:
    await accept(store, a_request(5))
    await adopt(store, an_adoption(1, 1, 0))

    refused = await adopt(
        store, an_adoption(1, 2, 0), an_adoption(5, 3, 0), an_adoption(6, 1, 0), an_adoption(7, 4, 0)
    )

    assert refused == [instance(1), instance(5), instance(6)]
    assert [row.id.int for row in await rows_of(store, 1, 5, 6, 7)] == [1, 5, 7]


@pytest.fixture
async def known(store: SchedulerStore) -> SchedulerStore:
    await accept(store, a_request(1), a_request(2))
    return store


def a_move(number: int, of: int = 1, **fields: object) -> Change:
    change = Change(
        instance=instance(of),
        number=number,
        what="migrate",
        cell="c1",
        asked_at=NOON + timedelta(seconds=number),
        by="moor-operator",
        request_id=request_id(number),
        source="h1",
    )
    return structs.replace(change, **fields)


async def write(store: SchedulerStore, *changes: Change) -> None:
    for change in changes:
        (row,) = await rows_of(store, change.instance.int)
        await save(store, structs.replace(row, history=(change,)))


async def numbers(store: SchedulerStore, query: ChangeQuery) -> list[int]:
    return [each.number for each in await store.changes(query)]


async def test_moves_of_all_instances_come_newest_first_by_host_and_if_they_go_on(
    known: SchedulerStore,
) -> None:
    await write(
        known,
        a_move(5),
        a_move(6, of=2, source="h3", destination="h1", outcome="confirmed", ended_at=LATER),
        a_move(7, source="h9"),
        a_move(8, what="delete"),
    )

    assert await numbers(known, ChangeQuery(ended=True)) == [7, 6, 5]
    assert await numbers(known, ChangeQuery()) == [7, 5]
    assert await numbers(known, ChangeQuery(ended=True, host="h1")) == [6, 5]
    assert await numbers(
        known, ChangeQuery(ended=True, behind=MovePlace(NOON + timedelta(seconds=6), instance(2)))
    ) == [5]
    assert await numbers(known, ChangeQuery(ended=True, limit=1)) == [7]
    going = await once(known.transaction, lambda tx: tx.lock_moves())
    assert sorted(each.number for each in going) == [5, 7]


async def test_who_counts_the_moves_waits_for_another_who_adds_one(known: SchedulerStore) -> None:
    counted = asyncio.Event()

    async def add(number: int, of: int) -> int:
        async with known.transaction() as transaction:
            going = await transaction.lock_moves()
            counted.set()
            # Long enough for the other one to count, if nothing stops it.
            await asyncio.sleep(0.1)
            (row,) = (await transaction.lock([instance(of)])).values()
            await transaction.save([structs.replace(row, history=(a_move(number, of),))])
        return len(going)

    first = asyncio.create_task(add(5, 1))
    await counted.wait()
    assert (await add(6, 2), await first) == (1, 0)


async def test_moves_of_one_moment_are_all_on_some_page(known: SchedulerStore) -> None:
    await write(known, a_move(5, asked_at=NOON), a_move(6, of=2, asked_at=NOON))

    (first,) = await known.changes(ChangeQuery(limit=1))
    (second,) = await known.changes(ChangeQuery(limit=1, behind=MovePlace(NOON, first.instance)))

    assert (first.number, second.number) == (5, 6)
    assert await known.changes(ChangeQuery(behind=MovePlace(NOON, second.instance))) == []


async def test_of_an_instance_that_is_given_orders_for_ever_the_oldest_ones_are_forgotten(
    known: SchedulerStore,
) -> None:
    await write(known, a_move(5), a_move(6), a_move(7, of=2), a_move(NUMBERS_KEPT + 5))

    kept = [await numbers(known, ChangeQuery(instance=instance(of), ended=True)) for of in (1, 2)]
    assert kept == [[6, NUMBERS_KEPT + 5], [7]]


async def test_hosts_are_written_found_by_name_in_pages_and_by_when_they_changed(
    store: SchedulerStore,
) -> None:
    def host(number: int, *, io_ops: int = 0, sequence: int = 0) -> HostState:
        return HostState(
            id=ProviderId(UUID(int=number)),
            name=f"host-{number}",
            cell="c1",
            up=True,
            io_ops=io_ops,
            sequence=sequence,
            kind=NODE,
            projects=("owner", "lessee"),
        )

    async def write(at: datetime, *hosts: HostState) -> None:
        await once(store.transaction, lambda tx: tx.save_hosts(hosts, at))

    await write(NOON, host(2), host(1), host(3))
    await write(LATER, host(2, io_ops=5, sequence=2))

    assert await store.hosts(HostQuery(limit=2)) == [host(1), host(2, io_ops=5, sequence=2)]
    assert await store.hosts(HostQuery(after="host-2", limit=2)) == [host(3)]
    assert await store.hosts(HostQuery(name="host-3", limit=2)) == [host(3)]
    assert await store.host_versions(LATER) == [(host(2).id, (LATER, 2))]
    assert len(await store.host_versions(NOON)) == 3
    assert await store.hosts(HostQuery(ids=(host(2).id, host(99).id))) == [host(2, io_ops=5, sequence=2)]
    locked = await once(store.transaction, lambda tx: tx.lock_hosts([host(1).id], ["host-3", "nobody"]))
    assert sorted(each.name for each in locked) == ["host-1", "host-3"]

    async with store.transaction() as transaction:
        await transaction.lock_hosts([host(2).id], ())
        await transaction.forget_hosts([host(2).id])
    assert await store.hosts(HostQuery(limit=3)) == [host(1), host(3)]
    assert await store.host_versions(LATER) == []


async def test_of_each_cell_the_latest_time_is_kept(store: SchedulerStore) -> None:
    await once(store.transaction, lambda tx: tx.save_cells([KnownCell("c2", NOON), KnownCell("c1", LATER)]))
    await once(store.transaction, lambda tx: tx.save_cells([KnownCell("c1", NOON), KnownCell("c2", LATER)]))

    assert await store.cells() == [KnownCell("c1", LATER), KnownCell("c2", LATER)]


async def test_orders_about_an_application_count_by_when_they_were_sent(store: SchedulerStore) -> None:
    elsewhere = timezone(timedelta(hours=5))
    shop, other = (KnownApplication(name="shop", projects=(project,)) for project in ("p", "q"))
    earlier, later = NOON - timedelta(microseconds=1), (NOON + timedelta(seconds=1)).astimezone(elsewhere)
    assert await once(store.transaction, lambda tx: tx.set_application("shop", NOON, shop)) == shop
    async with store.transaction() as transaction:
        assert await transaction.set_application("shop", earlier, other) == shop
        assert await transaction.set_application("shop", NOON, shop) == shop, "the same order comes again"
        assert await transaction.set_application("another", earlier, None) is None
        assert await transaction.set_application("shop", later, other) == other

    async with undone(store.transaction()) as transaction:
        assert await transaction.set_application("shop", NOON + timedelta(days=1), shop) == shop
    async with store.transaction() as transaction:
        assert await transaction.set_application("shop", later, None) is None
        assert await transaction.set_application("shop", NOON, shop) is None, "removed is not forgotten"
        assert await transaction.set_application("shop", NOON + timedelta(seconds=1), shop) == shop


def an_aggregate(number: int, name: str, **metadata: str) -> KeptAggregate:
    return KeptAggregate(id=AggregateId(UUID(int=number)), name=name, metadata=metadata, sequence=number)


async def test_one_worker_at_a_time_orders_aggregates_and_may_write_meanwhile(store: SchedulerStore) -> None:
    inside: list[int] = []
    most = 0

    async def order(number: int) -> None:
        nonlocal most
        async with store.ordering_aggregates():
            inside.append(number)
            most = max(most, len(inside))
            await once(
                store.transaction, lambda tx: tx.save_aggregate(an_aggregate(number, f"rack {number}"))
            )
            inside.remove(number)

    await asyncio.gather(*map(order, range(1, 5)))

    assert most == 1
    assert len(await store.aggregates()) == 4


async def test_a_name_of_another_aggregate_is_tried_again(store: SchedulerStore) -> None:
    await once(store.transaction, lambda tx: tx.save_aggregate(an_aggregate(1, "rack")))

    with pytest.raises(Transient, match="another worker has just created an aggregate 'rack'"):
        await once(store.transaction, lambda tx: tx.save_aggregate(an_aggregate(2, "rack")))
    assert await store.aggregates() == [an_aggregate(1, "rack").told]


def a_group(
    number: int, project: str = "shop", *, policy: GroupPolicy = "affinity", max_per_host: int = 1
) -> KnownGroup:
    rules = (PlaceRule(level=4, policy="anti-affinity", max_members=2), PlaceRule(level=2, policy="affinity"))
    group = ServerGroup(
        id=GroupId(UUID(int=number)), policy=policy, max_per_host=max_per_host, rules=rules[: number % 3]
    )
    return KnownGroup(definition=group, name=f"group-{number}", project=project)


async def test_a_deleted_group_is_found_no_more_and_its_id_stays_taken_until_it_is_pruned(
    store: SchedulerStore,
) -> None:
    group, id_ = a_group(1), GroupId(UUID(int=1))
    async with store.transaction() as transaction:
        await transaction.create_group(group)
        assert await transaction.delete_group(id_, "bank", NOON) is None
        assert await transaction.delete_group(id_, "shop", NOON) == group
        assert await transaction.delete_group(id_, "", NOON) is None, "it was deleted already"
    assert list(await store.groups(GroupQuery(ids=(id_,)))) == []

    await store.prune(NOON, 10)
    assert await once(store.transaction, lambda tx: tx.create_group(group)) is None
    await store.prune(NOON + timedelta(seconds=1), 10)
    assert await once(store.transaction, lambda tx: tx.create_group(group)) == group
