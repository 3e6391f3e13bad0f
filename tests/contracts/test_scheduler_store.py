"""Contract of the scheduler's stores: each request once, instances as decided, and hosts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec import structs

from bus.errors import Transient
from bus.message import AggregateId, GroupId, ProviderId
from bus.messages.applications import KnownApplication
from bus.messages.build import (
    BuildInstance,
    ClaimRefused,
    Flavor,
    Image,
    InstanceActive,
    InstanceId,
    InstanceState,
    RebuildInstance,
    RequestId,
)
from bus.messages.cell import Choice, PlaceInCell
from bus.messages.hosts import NODE, HostState
from bus.messages.placement import GroupPolicy, ResourceAmount, ServerGroup, Share
from bus.topology import CELL0
from bus.workers.handling import OutboxKey
from scheduler_worker.core.aggregates.kept import KeptAggregate, KnownOrder
from scheduler_worker.core.instances.lifecycle import (
    accepted,
    deleted,
    deleted_unseen,
    failed,
    heard,
    is_whole,
    placed,
)
from scheduler_worker.core.instances.rebuilds import rebuilt
from scheduler_worker.core.instances.rows import ACCEPTED, ACTIVE, DELETED, ERROR, Decision, InstanceRow
from scheduler_worker.store import (
    Acceptance,
    CellCounts,
    GroupQuery,
    HostQuery,
    InstanceQuery,
    InstancesTaken,
    Known,
    KnownCell,
    KnownGroup,
    NewRequest,
    Note,
    OtherContent,
    SchedulerStore,
)
from tests.contracts.scheduler_stores import STORES, open_scheduler_store

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=10)


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerStore]:
    async with open_scheduler_store(request.param) as store:
        yield store


def instance(number: int) -> InstanceId:
    return InstanceId(UUID(int=number))


def request_id(number: int) -> RequestId:
    return RequestId(UUID(int=1000 + number))


def a_request(number: int, *instances: int, digest: bytes = b"same") -> NewRequest:
    """A request for the instance of its own number, unless others are given."""
    build = BuildInstance(request_id=request_id(number), name="web")
    ids = [instance(each) for each in instances or (number,)]
    return NewRequest(request_id(number), digest, accepted(build, ids, NOON, LATER, b"a spec"))


async def unsaid(store: SchedulerStore, before: datetime = LATER + timedelta(days=1)) -> list[InstanceRow]:
    """Rows that the notes name."""
    return [row for note in await store.unsaid(before, None, 10) for row in note.rows]


async def note(store: SchedulerStore, *groups: Sequence[InstanceRow]) -> list[OutboxKey]:
    async with store.transaction() as transaction:
        return list(await transaction.note(groups))


async def confirm(store: SchedulerStore, *names: OutboxKey) -> None:
    async with store.transaction() as transaction:
        await transaction.confirm(names)


async def accept(store: SchedulerStore, *requests: NewRequest) -> list[Acceptance]:
    async with store.transaction() as transaction:
        return list(await transaction.accept(requests))


async def rows_of(store: SchedulerStore, *numbers: int) -> list[InstanceRow]:
    async with store.transaction() as transaction:
        rows = await transaction.lock([instance(number) for number in numbers])
    return [rows[instance(number)] for number in numbers if instance(number) in rows]


async def save(store: SchedulerStore, *rows: InstanceRow | None) -> None:
    async with store.transaction() as transaction:
        await transaction.lock([row.id for row in rows if row is not None])
        await transaction.save([row for row in rows if row is not None])


async def test_a_new_request_is_written_with_its_instances(store: SchedulerStore) -> None:
    new = a_request(1, 11, 12)

    assert await accept(store, new) == [Known(new.rows)]

    assert await rows_of(store, 11, 12) == list(new.rows)
    assert [row.told.name for row in new.rows] == ["web-1", "web-2"]


async def test_the_same_request_finds_its_instances_as_they_are_by_now(store: SchedulerStore) -> None:
    first = a_request(1, 11, 12)
    await accept(store, first)
    ended = failed(first.rows[0], LATER, reason="no valid host")
    assert ended is not None
    await save(store, ended)

    (again,) = await accept(store, a_request(1, 11, 12))

    assert again == Known((ended, first.rows[1]))


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


async def test_what_two_decide_at_once_is_decided_by_the_first(store: SchedulerStore) -> None:
    await accept(store, a_request(1))
    decided = []

    async def decide(reason: str) -> None:
        async with store.transaction() as transaction:
            row = (await transaction.lock([instance(1)]))[instance(1)]
            await asyncio.sleep(0)
            ended = failed(row, LATER, reason=reason)
            if ended is not None:
                decided.append(ended)
                await transaction.save([ended])

    await asyncio.gather(decide("this"), decide("that"))

    assert await rows_of(store, 1) == decided


async def test_a_decision_stands_unless_another_came_first(store: SchedulerStore) -> None:
    await accept(store, a_request(1), a_request(2))
    first, second = await rows_of(store, 1, 2)
    deleted_meanwhile = deleted(second, NOON)
    await save(store, deleted_meanwhile)

    ended = [failed(row, LATER, reason="no valid host") for row in (second, first)]
    async with store.transaction() as transaction:
        others = await transaction.decide([row for row in ended if row is not None])

    assert others == {second.id: deleted_meanwhile}
    assert await rows_of(store, 1, 2) == [ended[1], deleted_meanwhile]


async def test_of_two_who_decide_at_once_one_is_told_of_the_other(store: SchedulerStore) -> None:
    requests = [a_request(number) for number in range(1, 20)]
    await accept(store, *requests)

    async def decide(reason: str) -> dict[InstanceId, str]:
        ended = [failed(row, LATER, reason=reason) for each in requests for row in each.rows]
        async with store.transaction() as transaction:
            others = await transaction.decide([row for row in ended if row is not None])
        return {id_: row.told.reason for id_, row in others.items()}

    told = await asyncio.gather(decide("this"), decide("that"))

    rows = await rows_of(store, *range(1, 20))
    assert {row.told.reason for row in rows} < {"this", "that"}
    others = {row.id: row.told.reason for row in rows}
    assert sorted(told, key=len) == [{}, others]


def a_placed(new: NewRequest) -> NewRequest:
    """That request again, with its instance already placed."""
    (row,) = new.rows
    host = ProviderId(UUID(int=7))
    order = PlaceInCell(
        cell="c1",
        instance=row.id,
        request_id=new.id,
        sequence=2,
        attempt=1,
        issued_at=NOON,
        ends_by=LATER,
        flavor=Flavor(vcpus=1),
        chosen=Choice(
            name="h7",
            share=Share(host=host, amounts=(ResourceAmount(provider=host, resource="VCPU", amount=1),)),
        ),
    )
    refusals = (ClaimRefused(host="h6", reason="VCPU asked 1, free 0"),)
    decision = Decision(at=NOON, hosts=9, qualified=4, host="h7", alternates=("h8", "h9"))
    now = placed(row, order, "h7", NOON, refusals=refusals, decision=decision)
    assert now is not None
    return NewRequest(new.id, new.digest, (now,))


async def test_an_order_is_noted_until_it_is_confirmed_and_kept_until_its_cell_speaks(
    store: SchedulerStore,
) -> None:
    await accept(store, a_request(1))
    (now,) = a_placed(a_request(1)).rows
    async with store.transaction() as transaction:
        assert await transaction.decide([now]) == {}
        (kept,) = await transaction.note([[now]])

    assert await unsaid(store) == [now]
    await confirm(store, kept)
    assert await store.unsaid(LATER, None, 10) == []
    assert await accept(store, a_request(1)) == [Known((now,))]
    async with store.transaction() as transaction:
        assert await transaction.apply_events([an_active(1)]) == 1
    (heard_of,) = await rows_of(store, 1)
    assert (heard_of.order, heard_of.unsaid) == (None, False)
    assert await accept(store, a_request(1)) == [Known((heard_of,))]


async def test_what_a_cell_has_spoken_of_is_not_found_by_its_note(store: SchedulerStore) -> None:
    new = [a_placed(a_request(number)) for number in (1, 2)]
    async with store.transaction() as transaction:
        await transaction.accept(new)
        (kept,) = await transaction.note([[row for each in new for row in each.rows]])
    async with store.transaction() as transaction:
        assert await transaction.apply_events([an_active(1)]) == 1
    assert await store.unsaid(LATER, None, 10) == [Note(kept, new[1].rows)]

    async with store.transaction() as transaction:
        assert await transaction.apply_events([an_active(2)]) == 1
    assert await store.unsaid(LATER, None, 10) == [Note(kept, ())]


async def test_notes_are_read_behind_one_and_until_they_have_so_many_rows(store: SchedulerStore) -> None:
    new = [a_placed(a_request(number)) for number in range(1, 7)]
    rows = [row for each in new for row in each.rows]
    await accept(store, *new)
    first, second, third, fourth = await note(store, rows[1::-1], [rows[2]], rows[3:5], [rows[5]])

    found = [
        Note(first, tuple(rows[:2])),
        Note(second, (rows[2],)),
        Note(third, tuple(rows[3:5])),
        Note(fourth, (rows[5],)),
    ]
    assert await store.unsaid(LATER, None, 100) == found
    assert await store.unsaid(LATER, None, 1) == found[:1]
    assert await store.unsaid(LATER, None, 3) == found[:2]
    assert await store.unsaid(LATER, first, 2) == found[1:3]
    assert await store.unsaid(LATER, fourth, 2) == []
    assert await store.unsaid(NOON, None, 100) == []


async def test_who_is_noted_anew_is_found_by_the_new_note_alone(store: SchedulerStore) -> None:
    new = [a_placed(a_request(number)) for number in (1, 2)]
    rows = [row for each in new for row in each.rows]
    await accept(store, *new)
    (old,) = await note(store, rows)

    async with store.transaction() as transaction:
        names = await transaction.note([[row] for row in rows])
        await transaction.drop_notes([old])

    assert await store.unsaid(LATER, None, 10) == [
        Note(name, (row,)) for name, row in zip(names, rows, strict=True)
    ]
    assert len({old, *names}) == 3


def an_active(number: int, *, sequence: int = 101, cell: str = "c1") -> InstanceActive:
    state = InstanceState(
        id=instance(number),
        request_id=request_id(number),
        sequence=sequence,
        state=ACTIVE,
        cell=cell,
        host="h8",
        attempt=2,
        changed_at=LATER,
    )
    return InstanceActive(cell=cell, instance=state)


async def test_what_a_cell_says_of_who_was_placed_is_heard_without_looking(store: SchedulerStore) -> None:
    new = [a_placed(a_request(number)) for number in (1, 2)]
    await accept(store, *new)
    words = [an_active(2), an_active(1)]
    assert all(map(is_whole, words))

    async with store.transaction() as transaction:
        assert await transaction.apply_events(words) == 2

    expected = [
        heard(request.rows[0], an_active(number), LATER) for number, request in enumerate(new, start=1)
    ]
    assert await rows_of(store, 1, 2) == expected


async def test_a_word_that_is_no_news_or_not_of_who_was_placed_is_not_heard_without_looking(
    store: SchedulerStore,
) -> None:
    await accept(store, *(a_placed(a_request(number)) for number in (1, 2, 3, 4)), a_request(5))
    rows = await rows_of(store, 1, 2)
    await save(store, heard(rows[0], an_active(1, sequence=102), LATER), deleted(rows[1], LATER))
    before = await rows_of(store, 1, 2, 3, 4, 5)

    async with store.transaction() as transaction:
        words = [an_active(1), an_active(2), an_active(3, cell="c2"), an_active(4, sequence=2), an_active(5)]
        assert await transaction.apply_events([*words, an_active(6)]) == 0

    assert await rows_of(store, 1, 2, 3, 4, 5) == before


async def test_a_request_may_be_written_as_it_was_decided(store: SchedulerStore) -> None:
    new = a_placed(a_request(1))

    assert await accept(store, new) == [Known(new.rows)]

    assert await accept(store, new) == [Known(new.rows)]
    assert await store.overdue(LATER, 10) == []


async def test_what_was_decided_of_a_request_gives_way_to_who_was_there_before(store: SchedulerStore) -> None:
    await accept(store, a_request(1), a_request(2, digest=b"other"), a_request(3, 4))
    await save(store, deleted_unseen(instance(5), NOON))

    known, other, taken, unseen = await accept(
        store, *(a_placed(a_request(number)) for number in (1, 2, 4, 5))
    )

    assert (known, other, taken) == (Known(a_request(1).rows), OtherContent(), InstancesTaken((instance(4),)))
    assert isinstance(unseen, Known)
    (row,) = unseen.rows
    assert (row.told.state, row.told.cell, row.told.host, row.order) == (DELETED, CELL0, "", None)
    assert await rows_of(store, 1, 5) == [*a_request(1).rows, row]


async def test_a_transaction_that_fails_leaves_nothing_behind(store: SchedulerStore) -> None:
    await accept(store, a_request(1))
    (row,) = await rows_of(store, 1)

    async def fail_half_way() -> None:
        async with store.transaction() as transaction:
            await transaction.accept([a_request(2)])
            ended = [one for one in [failed(row, LATER, reason="no")] if one]
            await transaction.decide(ended)
            await transaction.note([ended])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_half_way()

    assert await rows_of(store, 1, 2) == [row]
    assert await store.unsaid(LATER + timedelta(1), None, 10) == []
    (kept,) = await note(store, [row])

    async def confirm_half_way() -> None:
        async with store.transaction() as transaction:
            await transaction.confirm([kept])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await confirm_half_way()

    assert [each.kept for each in await store.unsaid(LATER, None, 10)] == [kept]
    assert await store.overdue(LATER, 10) == [instance(1)]


async def test_only_what_is_accepted_and_late_is_overdue(store: SchedulerStore) -> None:
    await accept(store, a_request(1), a_request(2))
    await save(store, deleted((await rows_of(store, 2))[0], NOON))

    assert await store.overdue(LATER - timedelta(seconds=1), 10) == []
    assert await store.overdue(LATER, 10) == [instance(1)]


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
    assert await store.unsaid(LATER, None, 10) == [Note(second, (row,))]
    assert await rows_of(store, 1) == [row]

    await confirm(store, second, second)
    assert await store.unsaid(LATER, None, 10) == []
    assert not (await rows_of(store, 1))[0].unsaid


async def test_who_is_confirmed_by_two_notes_at_once_is_so_by_the_later(store: SchedulerStore) -> None:
    await accept(store, a_request(1))
    await save(store, failed((await rows_of(store, 1))[0], NOON, reason="no"))
    before = await rows_of(store, 1)
    await save(store, deleted(before[0], NOON))

    await confirm(store, *await note(store, await rows_of(store, 1), before))

    assert not (await rows_of(store, 1))[0].unsaid


async def test_instances_are_found_by_id_by_request_by_state_and_in_pages(store: SchedulerStore) -> None:
    await accept(store, a_request(1, 11, 15), a_request(2, 12), a_request(3, 13))
    await save(store, deleted((await rows_of(store, 12))[0], NOON), deleted_unseen(instance(14), NOON))

    async def found(query: InstanceQuery) -> list[int]:
        return [row.id.int for row in await store.instances(query)]

    assert await found(InstanceQuery()) == [11, 12, 13, 15]
    assert await found(InstanceQuery(limit=2)) == [11, 12]
    assert await found(InstanceQuery(after=instance(12), limit=2)) == [13, 15]
    assert await found(InstanceQuery(instances=(instance(13), instance(99)))) == [13]
    assert await found(InstanceQuery(request_id=request_id(1))) == [11, 15]
    assert await found(InstanceQuery(request_id=request_id(9))) == []
    assert await found(InstanceQuery(state=DELETED)) == [12]


async def test_instances_are_found_by_the_host_that_they_live_on(store: SchedulerStore) -> None:
    await accept(store, *(a_placed(a_request(number)) for number in (1, 2, 3, 4, 5)))
    async with store.transaction() as transaction:
        # The second moves on to another host.
        await transaction.apply_events([an_active(2)])
    gone, failing = await rows_of(store, 3, 4)
    await save(
        store,
        structs.replace(gone, told=structs.replace(gone.told, state=DELETED)),
        structs.replace(failing, told=structs.replace(failing.told, state=ERROR)),
    )

    async def found(query: InstanceQuery) -> list[int]:
        return [row.id.int for row in await store.instances(query)]

    assert await found(InstanceQuery(host="h7")) == [1, 4, 5]
    assert await found(InstanceQuery(host="h7", limit=1)) == [1]
    assert await found(InstanceQuery(host="h8")) == [2]
    assert await found(InstanceQuery(host="H7")) == []


async def test_how_a_host_was_chosen_is_kept_and_read_with_what_was_asked(store: SchedulerStore) -> None:
    (row,) = a_placed(a_request(1)).rows
    # Without any trouble, too.
    row = structs.replace(row, told=structs.replace(row.told, refusals=()))
    await accept(store, NewRequest(request_id(1), b"same", (row,)))
    async with store.transaction() as transaction:
        await transaction.apply_events([an_active(1)])

    (read,) = await store.instances(InstanceQuery(instances=(instance(1),)))

    assert row.decision is not None
    assert (read.told.state, read.told.host, read.decision, read.spec) == (
        *(ACTIVE, "h8", row.decision, b"a spec"),
    )


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
        async with store.transaction() as transaction:
            await transaction.save_hosts(hosts, at)

    await write(NOON, host(2), host(1), host(3))
    await write(LATER, host(2, io_ops=5, sequence=2))

    assert await store.hosts(HostQuery(limit=2)) == [host(1), host(2, io_ops=5, sequence=2)]
    assert await store.hosts(HostQuery(after="host-2", limit=2)) == [host(3)]
    assert await store.hosts(HostQuery(name="host-3", limit=2)) == [host(3)]
    assert await store.hosts(HostQuery(changed_since=LATER)) == [host(2, io_ops=5, sequence=2)]
    assert await store.hosts(HostQuery(ids=(host(2).id, host(99).id))) == [host(2, io_ops=5, sequence=2)]
    async with store.transaction() as transaction:
        locked = await transaction.lock_hosts([host(1).id], ["host-3", "nobody"])
    assert sorted(each.name for each in locked) == ["host-1", "host-3"]

    async with store.transaction() as transaction:
        await transaction.lock_hosts([host(2).id], ())
        await transaction.forget_hosts([host(2).id])
    assert await store.hosts(HostQuery(limit=3)) == [host(1), host(3)]
    assert await store.hosts(HostQuery(changed_since=LATER)) == []


async def test_an_instance_keeps_all_that_is_told_of_it(store: SchedulerStore) -> None:
    await accept(store, a_request(1))
    (row,) = await rows_of(store, 1)

    assert row.told == InstanceState(
        id=instance(1),
        request_id=request_id(1),
        sequence=1,
        state=ACCEPTED,
        name="web",
        changed_at=NOON,
    )


async def test_a_request_is_forgotten_when_all_of_it_was_deleted_long_ago_and_has_said_so(
    store: SchedulerStore,
) -> None:
    async with store.transaction() as transaction:
        await transaction.accept([a_request(number, 10 * number, 10 * number + 1) for number in range(1, 6)])
    await _delete(store, NOON, 10, 11, 20, 30, 31, 41, 50, 51)
    await _delete(store, LATER, 40)
    await confirm(store, *await note(store, await rows_of(store, 10, 11, 20, 31, 40, 41, 50, 51)))

    # 20 has a sibling that is alive, 30 has an unconfirmed message, 40 is too recent.
    assert await store.prune(LATER, 1) == 1
    assert await store.prune(LATER, 10) == 1
    assert await store.prune(LATER, 10) == 0

    left = await store.instances(InstanceQuery())
    assert [row.id.int for row in left] == [20, 21, 30, 31, 40, 41]
    assert [type(each) for each in await _accept(store, a_request(1, 10, 11), a_request(2, 20, 21))] == [
        Known,
        Known,
    ]


async def test_a_delete_whose_request_never_came_is_forgotten_too(store: SchedulerStore) -> None:
    async with store.transaction() as transaction:
        await transaction.save([deleted_unseen(instance(1), NOON), deleted_unseen(instance(2), LATER)])

    assert await store.prune(LATER, 10) == 1

    async with store.transaction() as transaction:
        assert list(await transaction.lock([instance(1), instance(2)])) == [instance(2)]


async def _accept(store: SchedulerStore, *requests: NewRequest) -> list[Acceptance]:
    async with store.transaction() as transaction:
        return list(await transaction.accept(requests))


async def _delete(store: SchedulerStore, at: datetime, *numbers: int) -> None:
    async with store.transaction() as transaction:
        rows = await transaction.lock([instance(number) for number in numbers])
        await transaction.save([over for row in rows.values() if (over := deleted(row, at)) is not None])


@pytest.mark.postgresql
async def test_a_delete_that_found_no_row_does_not_overwrite_the_request_that_came_meanwhile() -> None:
    """Only where transactions run concurrently: it happened when two workers had deletes and their requests at once."""
    async with open_scheduler_store("postgresql") as store:
        with pytest.raises(Transient):
            await delete_while_it_is_accepted(store)

        (row,) = await store.instances(InstanceQuery(instances=(instance(1),)))
        assert (row.told.request_id, row.told.state) == (request_id(1), ACCEPTED)


async def test_of_each_cell_the_latest_time_is_kept(store: SchedulerStore) -> None:
    async with store.transaction() as transaction:
        await transaction.save_cells([KnownCell("c2", NOON), KnownCell("c1", LATER)])
    async with store.transaction() as transaction:
        await transaction.save_cells([KnownCell("c1", NOON), KnownCell("c2", LATER)])

    assert await store.cells() == [KnownCell("c1", LATER), KnownCell("c2", LATER)]


async def test_the_instances_of_each_cell_are_counted_and_those_that_it_has_not_answered(
    store: SchedulerStore,
) -> None:
    assert await store.cell_counts() == []
    placed_ones = [a_placed(a_request(number, 10 + number)) for number in (1, 2, 3)]
    await accept(store, *placed_ones, a_request(4, 21))
    (first, second, third) = await rows_of(store, 11, 12, 13)
    event = an_active(11)
    await save(store, heard(first, event, LATER), deleted(second, LATER))
    gone = structs.replace(third, told=structs.replace(third.told, state=DELETED))
    await save(store, gone)

    assert await store.cell_counts() == [CellCounts("c1", instances=2, waiting=1)]


async def delete_while_it_is_accepted(store: SchedulerStore) -> None:
    async with store.transaction() as deleting:
        assert await deleting.lock([instance(1)]) == {}
        async with store.transaction() as accepting:
            await accepting.accept([a_request(1)])
        await deleting.save([deleted_unseen(instance(1), NOON)])


async def test_orders_about_an_application_count_by_when_they_were_sent(store: SchedulerStore) -> None:
    elsewhere = timezone(timedelta(hours=5))
    shop, other = (KnownApplication(name="shop", projects=(project,)) for project in ("p", "q"))
    earlier, later = NOON - timedelta(microseconds=1), (NOON + timedelta(seconds=1)).astimezone(elsewhere)
    async with store.transaction() as transaction:
        assert await transaction.set_application("shop", NOON, shop) == shop
    async with store.transaction() as transaction:
        assert await transaction.set_application("shop", earlier, other) == shop
        assert await transaction.set_application("shop", NOON, shop) == shop, "the same order comes again"
        assert await transaction.set_application("another", earlier, None) is None
        assert await transaction.set_application("shop", later, other) == other

    async def fail() -> None:
        async with store.transaction() as transaction:
            assert await transaction.set_application("shop", NOON + timedelta(days=1), shop) == shop
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with store.transaction() as transaction:
        assert await transaction.set_application("shop", later, None) is None
        assert await transaction.set_application("shop", NOON, shop) is None, "removed is not forgotten"
        assert await transaction.set_application("shop", NOON + timedelta(seconds=1), shop) == shop


async def test_applications_are_written_over_found_in_order_and_forgotten(store: SchedulerStore) -> None:
    shop, admin = KnownApplication(name="shop", projects=("p", "q")), KnownApplication(name="a-1", admin=True)
    fewer = structs.replace(shop, projects=("q",))
    async with store.transaction() as transaction:
        await transaction.set_application("shop", NOON, shop)
        await transaction.set_application("a-1", NOON, admin)
    async with store.transaction() as transaction:
        await transaction.set_application("shop", LATER, fewer)
        await transaction.set_application("nobody", NOON, None)

    assert await store.applications() == [admin, fewer]

    async with store.transaction() as transaction:
        await transaction.set_application("a-1", LATER, None)

    async def fail() -> None:
        async with store.transaction() as transaction:
            await transaction.set_application("shop", LATER, None)
            await transaction.set_application("a-1", LATER, admin)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await store.applications() == [fewer]


def an_aggregate(number: int, name: str, **metadata: str) -> KeptAggregate:
    return KeptAggregate(id=AggregateId(UUID(int=number)), name=name, metadata=metadata, sequence=number)


async def test_aggregates_are_written_over_found_in_order_and_deleted(store: SchedulerStore) -> None:
    north, south = an_aggregate(2, "north", availability_zone="n"), an_aggregate(1, "south")
    async with store.transaction() as transaction:
        assert await transaction.lock_aggregates() == []
        await transaction.save_aggregate(south)
        await transaction.save_aggregate(north)
    orders = (KnownOrder("a", is_done=True), KnownOrder("b", is_done=False))
    other = structs.replace(south, metadata={"rack": "r1"}, sequence=9, orders=orders)
    async with store.transaction() as transaction:
        assert await transaction.lock_aggregates() == [north, south]
        await transaction.save_aggregate(other)
    assert await store.aggregates() == [north.told, other.told]

    async def fail() -> None:
        async with store.transaction() as transaction:
            await transaction.forget_aggregate(other.id)
            await transaction.save_aggregate(structs.replace(north, metadata={}))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with store.transaction() as transaction:
        await transaction.forget_aggregate(north.id)
        await transaction.forget_aggregate(north.id)
        assert await transaction.lock_aggregates() == [other]
    assert await store.aggregates() == [other.told]


async def test_a_deleted_aggregate_is_kept_without_its_name(store: SchedulerStore) -> None:
    gone = structs.replace(an_aggregate(1, "rack"), deleted_us=5)
    async with store.transaction() as transaction:
        await transaction.save_aggregate(an_aggregate(1, "rack"))
        await transaction.save_aggregate(gone)
    assert await store.aggregates() == []

    async with store.transaction() as transaction:
        await transaction.save_aggregate(an_aggregate(2, "rack"))
        await transaction.save_aggregate(structs.replace(an_aggregate(2, "rack"), deleted_us=6))
        await transaction.save_aggregate(an_aggregate(3, "rack"))
        kept = await transaction.lock_aggregates()

    assert [
        (each.id.int, each.name, each.deleted_us) for each in sorted(kept, key=lambda each: each.id.int)
    ] == [
        (1, "rack", 5),
        (2, "rack", 6),
        (3, "rack", 0),
    ]
    assert await store.aggregates() == [an_aggregate(3, "rack").told]


async def test_one_worker_at_a_time_orders_aggregates_and_may_write_meanwhile(store: SchedulerStore) -> None:
    inside: list[int] = []
    most = 0

    async def order(number: int) -> None:
        nonlocal most
        async with store.ordering_aggregates():
            inside.append(number)
            most = max(most, len(inside))
            async with store.transaction() as transaction:
                await transaction.save_aggregate(an_aggregate(number, f"rack {number}"))
            inside.remove(number)

    await asyncio.gather(*map(order, range(1, 5)))

    assert most == 1
    assert len(await store.aggregates()) == 4


async def test_a_name_of_another_aggregate_is_tried_again(store: SchedulerStore) -> None:
    async with store.transaction() as transaction:
        await transaction.save_aggregate(an_aggregate(1, "rack"))

    async def take_the_name() -> None:
        async with store.transaction() as transaction:
            await transaction.save_aggregate(an_aggregate(2, "rack"))

    with pytest.raises(Transient, match="another worker has just created an aggregate 'rack'"):
        await take_the_name()
    assert await store.aggregates() == [an_aggregate(1, "rack").told]


async def test_a_rebuild_and_the_requests_of_those_before_are_written_and_read(store: SchedulerStore) -> None:
    await accept(store, a_placed(a_request(1)))
    (row,) = await rows_of(store, 1)
    active = heard(row, an_active(1), LATER)
    assert active is not None
    order = RebuildInstance(
        request_id=request_id(70),
        instance=instance(1),
        image=Image(source="http://images/2", checksum="1b2c"),
    )

    rebuilding = rebuilt(active, order, LATER, timeout_s=60, why_no_work=lambda _: "")

    assert isinstance(rebuilding, InstanceRow)
    await save(store, rebuilding)
    async with store.transaction() as transaction:
        (kept,) = await transaction.note([[rebuilding]])
    assert await rows_of(store, 1) == [rebuilding]
    assert Note(kept, (rebuilding,)) in await store.unsaid(LATER + timedelta(days=1), None, 10)
    # The fast path must not take "active": the instance was active before.
    async with store.transaction() as transaction:
        assert await transaction.apply_events([an_active(1, sequence=200)]) == 0
    assert await rows_of(store, 1) == [rebuilding]


def a_group(
    number: int, project: str = "shop", *, policy: GroupPolicy = "affinity", max_per_host: int = 1
) -> KnownGroup:
    group = ServerGroup(id=GroupId(UUID(int=number)), policy=policy, max_per_host=max_per_host)
    return KnownGroup(definition=group, name=f"group-{number}", project=project)


async def test_a_group_is_created_once_and_other_content_does_not_change_it(store: SchedulerStore) -> None:
    first, other = a_group(1), a_group(1, policy="anti-affinity", max_per_host=3)
    async with store.transaction() as transaction:
        assert await transaction.create_group(first) == first
        assert await transaction.create_group(other) == first
    async with store.transaction() as transaction:
        assert await transaction.create_group(first) == first

    assert list(await store.groups(GroupQuery())) == [first]


async def test_groups_are_found_by_id_by_project_and_in_pages(store: SchedulerStore) -> None:
    groups = [a_group(number, "shop" if number % 2 else "bank") for number in range(1, 6)]
    async with store.transaction() as transaction:
        for group in reversed(groups):
            await transaction.create_group(group)

    ids = [group.definition.id for group in groups]
    assert list(await store.groups(GroupQuery())) == groups
    assert list(await store.groups(GroupQuery(ids=(ids[3], ids[1], GroupId(UUID(int=77)))))) == [
        groups[1],
        groups[3],
    ]
    assert list(await store.groups(GroupQuery(after=ids[0], project="shop", limit=1))) == [groups[2]]


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
    async with store.transaction() as transaction:
        assert await transaction.create_group(group) is None
    await store.prune(NOON + timedelta(seconds=1), 10)
    async with store.transaction() as transaction:
        assert await transaction.create_group(group) == group
