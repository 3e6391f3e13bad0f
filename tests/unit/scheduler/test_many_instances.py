"""Requests for many instances: how many there may be, how they are handled, and how their states are answered."""

from uuid import UUID

import pytest

from bus.broker import chunks
from bus.messages.build import BuildInstance
from bus.workers.handlers import Answer, Weighed
from engine.flavors import Flavor, InstanceId, RequestId
from engine.requests import RequestProblem, read_request
from tests.contracts.placement_orders import VOCABULARY

REQUEST = RequestId(UUID(int=7))


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


def test_a_batch_builds_no_more_instances_than_one_transaction_may_hold() -> None:
    async def build(_: object, __: object) -> list[Answer]:
        return []

    handler = Weighed(build, lambda message: message.count, 2_000)
    counts = [900, 900, 900, 1, 5000, 1]
    portions = chunks([handler.weight_of(a_build(count)) for count in counts], handler.weight_max)

    assert [counts[each] for each in portions] == [[900, 900], [900, 1], [5000], [1]]
