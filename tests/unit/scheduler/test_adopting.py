"""Two schedulers get the same order to take an instance over: it is claimed once, written once, and its claim stays."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.audit import AdoptInstance
from bus.messages.build import BuildRejected, InstancesFound
from bus.messages.placement import ClaimAnswered, ClaimResources, ReleaseClaim
from bus.workers.handling import Answer, Received, Said, Tell
from engine.flavors import Flavor, InstanceId, RequestId
from engine.hosts import HostSetting, HostState
from engine.inventories import ProviderId, ResourceAmount, Share
from engine.refusals import AlreadyClaimed, Claimed, ClaimVerdict
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox import Outbox, OutboxNotes
from scheduler_worker.requests.adopting import InstanceAdopter
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.store import SchedulerTransaction
from scheduler_worker.wiring import STANDARD
from tests.contracts.scheduler_rows import NOON
from tests.plugins import standard_plugins
from tests.stores_in_memory import MemorySchedulerStore

pytestmark = pytest.mark.asyncio

HOST = ProviderId(UUID(int=55))
SHARE = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=2),))
ORDER = AdoptInstance(
    instance=InstanceId(UUID(int=7)),
    request_id=RequestId(UUID(int=8)),
    of_cell="c1",
    host="h1",
    share=SHARE,
    state="active",
    flavor=Flavor(name="old", vcpus=2),
    created_at=NOON,
)


class BlindAtFirst(MemorySchedulerStore):
    """Its first lock of each transaction sees nothing, as if the row was written just after it."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SchedulerTransaction]:
        async with super().transaction() as transaction:
            lock, is_first = transaction.lock, True

            async def blind(instances: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
                nonlocal is_first
                seen = {} if is_first else await lock(instances)
                is_first = False
                return seen

            transaction.lock = blind  # type: ignore[method-assign]
            yield transaction


async def a_store(kind: type[MemorySchedulerStore]) -> MemorySchedulerStore:
    store = kind()
    state = HostState(id=HOST, name="h1", cell="c1", up=True, setting=HostSetting(mode="draining"))
    async with store.transaction() as transaction:
        await transaction.save_hosts([state], NOON)
    return store


async def adopted(
    store: MemorySchedulerStore, verdict: ClaimVerdict, order: AdoptInstance = ORDER
) -> list[Said]:
    async def placement(claims: Sequence[Message]) -> Sequence[Message]:
        return [
            ClaimAnswered(consumer=each.consumer, attempt=each.attempt, verdict=verdict)
            for each in claims
            if isinstance(each, ClaimResources)
        ]

    reader = RequestReader(STANDARD, timedelta(hours=1), standard_plugins())
    adopter = InstanceAdopter(store, reader, placement, lambda: NOON, timeout_s=300)
    outbox = Outbox(store, OutboxNotes(store, timedelta(seconds=5), lambda: NOON))
    ask = Received(order, "id", "", "moor-operator", "answers.moor-operator.x", 0)
    async with outbox.transaction() as transaction:
        return await adopter.on_adopts([ask], transaction)


def releases(said: Sequence[Said]) -> list[Message]:
    return [
        each.message for each in said if isinstance(each, Tell) and isinstance(each.message, ReleaseClaim)
    ]


def answer(said: Sequence[Said]) -> Message:
    (found,) = (each.message for each in said if isinstance(each, Answer))
    return found


@pytest.mark.parametrize("kind", [MemorySchedulerStore, BlindAtFirst])
@pytest.mark.parametrize("first", [Claimed(), AlreadyClaimed(attempt=1, share=SHARE)])
async def test_the_second_worker_finds_the_row_and_keeps_the_claim(
    kind: type[MemorySchedulerStore], first: ClaimVerdict
) -> None:
    """Also if its claim was the one that was granted, and the other worker wrote the row before it."""
    store = await a_store(kind)
    second = AlreadyClaimed(attempt=1, share=SHARE) if first == Claimed() else Claimed()
    await adopted(store, first)

    said = await adopted(store, second)

    assert releases(said) == []
    told = answer(said)
    assert isinstance(told, InstancesFound)
    assert [each.id for each in told.instances] == [ORDER.instance]


async def test_a_new_claim_of_one_that_cannot_be_written_is_released() -> None:
    store = await a_store(MemorySchedulerStore)
    await adopted(store, Claimed())
    other = structs.replace(ORDER, instance=InstanceId(UUID(int=9)))

    said = await adopted(store, Claimed(), other)

    assert isinstance(answer(said), BuildRejected)
    (release,) = releases(said)
    assert isinstance(release, ReleaseClaim)
    assert release.consumer == other.instance
    held_before = await adopted(store, AlreadyClaimed(attempt=1, share=SHARE), other)
    assert releases(held_before) == []


async def test_another_share_that_it_holds_already_is_refused_with_both() -> None:
    store = await a_store(MemorySchedulerStore)
    more = structs.replace(SHARE, amounts=(structs.replace(SHARE.amounts[0], amount=4),))

    told = answer(await adopted(store, AlreadyClaimed(attempt=1, share=more)))

    assert isinstance(told, BuildRejected)
    assert (told.field, "it holds another share here" in told.reason) == ("share", True)
