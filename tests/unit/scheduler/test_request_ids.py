import time
from uuid import RFC_4122, UUID, uuid5

import pytest

from bus.messages.build import BuildInstance
from engine.flavors import InstanceId, RequestId, instance_id_of
from moor.client.requests import new_request_ids
from scheduler_worker.core.instances.rows import instance_ids_of

REQUEST = RequestId(UUID("01a1fbd0-6b3d-7657-aceb-8df88742f75d"))


def test_our_own_requests_have_ids_that_begin_with_their_time() -> None:
    before_ms = time.time_ns() // 1_000_000
    ids = new_request_ids(1000)
    after_ms = time.time_ns() // 1_000_000

    assert len(set(ids)) == 1000
    for id_ in ids:
        assert (id_.version, id_.variant) == (7, RFC_4122)
        assert before_ms <= id_.int >> 80 <= after_ms


@pytest.mark.parametrize("index", [0, 1, 99])
def test_an_instance_id_follows_from_its_request_as_docs_bus_says(index: int) -> None:
    assert str(instance_id_of(REQUEST, index)) == str(REQUEST)[:13] + str(uuid5(REQUEST, str(index)))[13:]


def test_the_instances_of_a_request_have_the_ids_that_it_gives_or_derived_ones() -> None:
    given = (InstanceId(UUID(int=7)),)

    assert instance_ids_of(BuildInstance(request_id=REQUEST, instance_ids=given)) == given
    derived = (instance_id_of(REQUEST, 0), instance_id_of(REQUEST, 1))
    assert instance_ids_of(BuildInstance(request_id=REQUEST, count=2)) == derived


def test_no_two_instances_have_the_same_id() -> None:
    others = [RequestId(UUID(int=REQUEST.int + number)) for number in range(100)]

    assert len({instance_id_of(request, index) for request in others for index in range(100)}) == 10_000
