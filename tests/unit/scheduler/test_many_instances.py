"""Requests for many instances: how many there may be, how they are handled, and how their states are answered."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bus.broker import chunks
from bus.codec import encode
from bus.message import PARCEL_BYTES_MAX, Envelope
from bus.messages.build import AskInstances, BuildInstance, InstancesFound, InstanceState
from bus.workers.handling import Answer, ReadOnly, Weighed
from engine.flavors import Flavor, InstanceId, RequestId
from engine.picture.picture import Picture
from engine.refusals import FunnelStep, NoValidHost
from engine.requests import InstanceSpec, RequestProblem, read_request
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.questions import instance_questions
from scheduler_worker.registry import CellRegistry
from scheduler_worker.store import NewRequest
from tests.contracts.placement_orders import VOCABULARY
from tests.contracts.scheduler_stores import open_scheduler_store
from tests.unit.scheduler.test_scheduler_handlers import an_ask

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
REQUEST = RequestId(UUID(int=7))
FUNNEL = NoValidHost(
    hosts=10_000,
    steps=tuple(FunnelStep(step=f"step {n}", removed=n, example="because " * 20) for n in range(15)),
)
# Most of an answer about such instances are the details of their rows.
HUGE = InstanceSpec(amounts=tuple((f"CUSTOM_{'X' * 200}_{n}", 1) for n in range(15)))


def instance(number: int) -> InstanceId:
    return InstanceId(UUID(int=number))


def a_build(count: int, *given: InstanceId) -> BuildInstance:
    return BuildInstance(request_id=REQUEST, flavor=Flavor(vcpus=1), count=count, instance_ids=given)


@pytest.mark.parametrize(("count", "is_allowed"), [(0, False), (1, True), (1000, True), (1001, False)])
def test_a_request_builds_1_to_1000_instances(count: int, *, is_allowed: bool) -> None:
    read = read_request(a_build(count), VOCABULARY)

    assert isinstance(read, RequestProblem) is not is_allowed
    if isinstance(read, RequestProblem):
        assert (read.field, str(read.value), read.reason) == (
            "count",
            str(count),
            "a request builds 1 to 1000 instances",
        )


def test_an_instance_that_is_given_twice_is_named() -> None:
    read = read_request(a_build(3, instance(1), instance(2), instance(1)), VOCABULARY)

    assert isinstance(read, RequestProblem)
    assert (read.field, str(read.value)) == ("instance_ids[2]", str(instance(1)))


@pytest.mark.asyncio
@pytest.mark.parametrize("spec", [b"", encoded(HUGE)])
async def test_the_answer_about_many_instances_fits_into_a_message_and_the_next_one_goes_on(
    spec: bytes,
) -> None:
    rows = tuple(
        InstanceRow(
            told=InstanceState(
                id=instance(number), request_id=REQUEST, sequence=2, state="error", no_valid_host=FUNNEL
            ),
            issued_at=NOON,
            ends_by=NOON,
            spec=spec,
        )
        for number in range(1, 201)
    )
    async with open_scheduler_store("memory") as store:
        async with store.transaction() as transaction:
            await transaction.accept([NewRequest(REQUEST, b"digest", rows)])
        handler = instance_questions(store, CellRegistry(Picture(), timedelta(seconds=20), lambda: NOON))[
            AskInstances
        ]
        assert isinstance(handler, ReadOnly)
        found: list[InstanceId] = []
        after: InstanceId | None = None
        pages = 0
        while after is not None or not pages:
            asked = AskInstances(request_id=REQUEST, after=after, limit=200)
            (answer,) = await handler.handle([an_ask(asked, reply_to="answers.me.1")])
            assert isinstance(answer, Answer)
            assert isinstance(answer.message, InstancesFound)
            envelope = Envelope(message=answer.message, id="1", version=1, sent_at=NOON)
            assert len(encode(envelope)) < PARCEL_BYTES_MAX
            found += [state.id for state in answer.message.instances]
            after = answer.message.next
            pages += 1

    assert found == [row.id for row in rows]
    assert pages > 1


def test_a_batch_builds_no_more_instances_than_one_transaction_may_hold() -> None:
    async def build(_: object, __: object) -> list[Answer]:
        return []

    handler = Weighed(build, lambda message: message.count, 2_000)
    counts = [900, 900, 900, 1, 5000, 1]
    portions = chunks([handler.weight_of(a_build(count)) for count in counts], handler.weight_max)

    assert [counts[each] for each in portions] == [[900, 900], [900, 1], [5000], [1]]
