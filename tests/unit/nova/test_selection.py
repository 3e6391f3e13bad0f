"""Our answer is the one that a real nova-scheduler gave, byte by byte in its allocation requests."""

import json
from typing import Any
from uuid import UUID

import pytest

from engine.inventories import ProviderId, ResourceAmount, Share
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from nova_bridge.selection import ComputeNode, SelectedHost, allocation_request, write_selections
from tests.unit.nova.recorded import CELL, answer_body, message_in

AMOUNTS = {"DISK_GB": 1, "MEMORY_MB": 64, "VCPU": 1}
SPEC = InstanceSpec(amounts=tuple(AMOUNTS.items()))
ROOT, NIC, POOL = (ProviderId(UUID(int=number)) for number in (1, 2, 3))


def a_node(id_: ProviderId = ROOT, name: str = "h1", cell: UUID = CELL) -> ComputeNode:
    return ComputeNode(id=id_, service=name, name=name, cell=cell, zone="nova")


def a_host(id_: ProviderId = ROOT, name: str = "h1", cell: UUID = CELL) -> SelectedHost:
    amounts = tuple(ResourceAmount(id_, resource, amount) for resource, amount in AMOUNTS.items())
    return SelectedHost(a_node(id_, name, cell), Share(host=id_, amounts=amounts))


def plain(objects: Any) -> Any:
    """Without the order of the changes, which is that of a set in Nova."""
    if isinstance(objects, dict):
        return {
            name: sorted(value) if name == "nova_object.changes" else plain(value)
            for name, value in objects.items()
        }
    return [plain(each) for each in objects] if isinstance(objects, list) else objects


def parsed(answer: Any) -> list[Any]:
    return [json.loads(each["nova_object.data"]["allocation_request"]) for each in answer[0]]


def test_the_answer_is_the_recorded_one() -> None:
    recorded = message_in(answer_body())["result"]
    nodes = [each["nova_object.data"] for each in recorded[0]]
    hosts = [a_host(ProviderId(UUID(each["compute_node_uuid"])), each["nodename"]) for each in nodes]

    written: Any = write_selections([hosts], SPEC)

    assert parsed(written) == parsed(recorded)
    for answer in (written, recorded):
        for each in answer[0]:
            each["nova_object.data"]["allocation_request"] = ""
    assert plain(written) == plain(recorded)


def test_each_group_is_mapped_to_its_provider_by_the_name_of_its_requester() -> None:
    spec = InstanceSpec(
        amounts=(("DISK_GB", 5), ("NET_BW_EGR_KILOBIT_PER_SEC", 3000), ("VCPU", 2)),
        groups=(
            GranularGroup("1", (("VCPU", 1),)),
            GranularGroup("port p-1", (("NET_BW_EGR_KILOBIT_PER_SEC", 1000),)),
            GranularGroup("port p-2", (("NET_BW_EGR_KILOBIT_PER_SEC", 2000),)),
        ),
    )
    share = Share(
        host=ROOT,
        amounts=(
            ResourceAmount(ROOT, "VCPU", 2),
            ResourceAmount(NIC, "NET_BW_EGR_KILOBIT_PER_SEC", 3000),
            ResourceAmount(POOL, "DISK_GB", 5),
        ),
    )

    asked = allocation_request(
        SelectedHost(a_node(), share, {"1": ROOT, "port p-1": NIC, "port p-2": NIC}), spec
    )

    assert asked == {
        "allocations": {
            str(ROOT): {"resources": {"VCPU": 2}},
            str(NIC): {"resources": {"NET_BW_EGR_KILOBIT_PER_SEC": 3000}},
            str(POOL): {"resources": {"DISK_GB": 5}},
        },
        "mappings": {
            "": [str(ROOT), str(POOL)],
            "1": [str(ROOT)],
            "p-1": [str(NIC)],
            "p-2": [str(NIC)],
        },
    }


TOO_MUCH = InstanceSpec(amounts=(("VCPU", 1),), groups=(GranularGroup("1", (("VCPU", 9),)),))


@pytest.mark.parametrize(
    ("hosts", "spec", "why"),
    [
        ([a_host(), a_host(NIC, "h2", UUID(int=9))], SPEC, "not of 2 cells"),
        ([SelectedHost(a_node(NIC), a_host().share)], SPEC, "the share is of"),
        ([SelectedHost(a_node(), a_host().share, {"1": ROOT})], TOO_MUCH, "more than its share"),
    ],
    ids=["alternates of another cell", "a share of another host", "groups that take more than the share"],
)
def test_what_nova_must_not_believe_is_never_told(
    hosts: list[SelectedHost], spec: InstanceSpec, why: str
) -> None:
    with pytest.raises(AssertionError, match=why):
        write_selections([hosts], spec)
