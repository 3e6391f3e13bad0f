"""Requests and rows of instances for the contract of the scheduler's stores."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from bus.messages.build import BuildInstance, ClaimRefused, InstanceActive, InstanceState
from bus.messages.cell import PlaceInCell
from bus.workers.handlers import OutboxKey
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import Choice, ProviderId, ResourceAmount, Share
from scheduler_worker.core.instances.lifecycle import deleted, deleted_unseen
from scheduler_worker.core.instances.rows import ACTIVE, HostDecision, InstanceRow, accepted, placed
from scheduler_worker.store_sql import Acceptance, NewRequest, SchedulerStore
from tests.running import once

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

LATER = NOON + timedelta(minutes=10)


def instance(number: int) -> InstanceId:
    return InstanceId(UUID(int=number))


def request_id(number: int) -> RequestId:
    return RequestId(UUID(int=1000 + number))


def a_request(number: int, *instances: int, digest: bytes = b"same", project: str = "") -> NewRequest:
    """A request for the instance of its own number, unless others are given."""
    build = BuildInstance(request_id=request_id(number), name="web", project=project)
    ids = [instance(each) for each in instances or (number,)]
    return NewRequest(request_id(number), digest, accepted(build, ids, NOON, LATER, b"a spec"))


async def unsaid(store: SchedulerStore, before: datetime = LATER + timedelta(days=1)) -> list[InstanceRow]:
    """Rows that the notes name."""
    return [row for note in await store.unconfirmed(before, None, 10) for row in note.rows]


async def note(store: SchedulerStore, *groups: Sequence[InstanceRow]) -> list[OutboxKey]:
    return list(await once(store.transaction, lambda tx: tx.note(groups)))


async def confirm(store: SchedulerStore, *names: OutboxKey) -> None:
    await once(store.transaction, lambda tx: tx.confirm(names))


async def accept(store: SchedulerStore, *requests: NewRequest) -> list[Acceptance]:
    return list(await once(store.transaction, lambda tx: tx.accept(requests)))


async def rows_of(store: SchedulerStore, *numbers: int) -> list[InstanceRow]:
    rows = await once(store.transaction, lambda tx: tx.lock([instance(number) for number in numbers]))
    return [rows[instance(number)] for number in numbers if instance(number) in rows]


async def save(store: SchedulerStore, *rows: InstanceRow | None) -> None:
    async with store.transaction() as transaction:
        await transaction.lock([row.id for row in rows if row is not None])
        await transaction.save([row for row in rows if row is not None])


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
    decision = HostDecision(at=NOON, hosts=9, qualified=4, host="h7", alternates=("h8", "h9"))
    now = placed(row, order, "h7", NOON, refusals=refusals, decision=decision)
    assert now is not None
    return NewRequest(new.id, new.digest, (now,))


def an_active(number: int, *, sequence: int = 101, cell: str = "c1", host: str = "h8") -> InstanceActive:
    state = InstanceState(
        id=instance(number),
        request_id=request_id(number),
        sequence=sequence,
        state=ACTIVE,
        cell=cell,
        host=host,
        attempt=2,
        changed_at=LATER,
    )
    return InstanceActive(cell=cell, instance=state)


async def delete(store: SchedulerStore, at: datetime, *numbers: int) -> None:
    async with store.transaction() as transaction:
        rows = await transaction.lock([instance(number) for number in numbers])
        await transaction.save([over for row in rows.values() if (over := deleted(row, at)) is not None])


async def delete_while_it_is_accepted(store: SchedulerStore) -> None:
    async with store.transaction() as deleting:
        assert await deleting.lock([instance(1)]) == {}
        await once(store.transaction, lambda tx: tx.accept([a_request(1)]))
        await deleting.save([deleted_unseen(instance(1), NOON)])
