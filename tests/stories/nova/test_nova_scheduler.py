"""nova-conductor asks our scheduler on Nova's own RabbitMQ, and our placement has what was chosen."""

import json

import pytest

from tests.stories.nova.conductor import SELECT, asked_for, failure_of
from tests.stories.nova.nova_world import SECOND, a_node, a_nova, an_instance, scheduled
from tests.stories.scripted import host_id
from tests.unit.nova.recorded import DEVICE, DEVICES, device_groups, devices_of, pci

pytestmark = pytest.mark.rabbitmq


async def test_a_boot_is_answered_with_a_claimed_host_and_alternates_of_its_cell() -> None:
    instance = an_instance()
    async with scheduled("h1", "h2", "h3") as world:
        await world.add("far", cell=SECOND)
        (chosen,) = await world.conductor.select(instance)

        host = chosen[0]["service_host"]
        request = json.loads(chosen[0]["allocation_request"])
        assert list(request["allocations"]) == [chosen[0]["compute_node_uuid"]]
        assert chosen[0]["allocation_request_version"] == "1.36"
        assert await world.held(instance) == {host: {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 1}}
        assert {each["cell_uuid"] for each in chosen} == {chosen[0]["cell_uuid"]}
        assert len({each["service_host"] for each in chosen}) == len(chosen)
        assert len(chosen) == (1 if host == "far" else 3)


async def test_devices_of_an_alias_go_where_they_are_free_and_nova_reads_which_they_are() -> None:
    """With PCI in placement, Nova sends a group for each device, and finds its provider by the group in the answer."""
    first, second = an_instance(), an_instance()
    devices = {
        "flavor": {"extra_specs": {"pci_passthrough:alias": "nic:2"}},
        "pci_requests": pci(devices_of(2)),
        "requested_resources": device_groups(2),
    }
    async with scheduled("h1", "h2") as world:
        await world.done("PUT", f"/resource_classes/{DEVICE}")
        await world.add_device("h1", "0000:03:00.0", DEVICE)
        for address in ("0000:81:00.0", "0000:82:00.0"):
            await world.add_device("h2", address, DEVICE)

        (chosen,) = await world.conductor.select(first, **devices)
        reason = await world.conductor.refusal(second, **devices)

    request = json.loads(chosen[0]["allocation_request"])
    served = [request["mappings"][f"{DEVICES}-{number}"] for number in range(2)]
    assert [each["service_host"] for each in chosen] == ["h2"]
    assert sorted(served) == sorted([[str(host_id(f"h2_0000:{bus}:00.0"))] for bus in ("81", "82")])
    assert all(request["allocations"][id_] == {"resources": {DEVICE: 1}} for (id_,) in served)
    assert "no host among 2" in reason


async def test_a_request_that_names_an_unknown_host_holds_up_no_other_one() -> None:
    async with scheduled("h1") as world:
        strangers = [
            await world.conductor.send(SELECT, asked_for(an_instance(), force_hosts=[name]))
            for name in ("gone-1", "gone-2", "gone-3")
        ]
        (chosen,) = await world.conductor.select(an_instance())
        answered = [id_ for id_ in strangers if any(s["ending"] for s in world.conductor.heard.get(id_, ()))]
        reasons = [failure_of(await world.conductor.until_answered(each)) for each in strangers]

    assert chosen[0]["service_host"] == "h1"
    assert answered == []
    assert all("no such host is known" in each for each in reasons)


@pytest.mark.hits("a request names what is not known: Nova is read before it is refused")
async def test_a_request_that_names_a_new_host_is_decided_after_nova_was_read() -> None:
    async with scheduled("h1", "new") as world:
        world.known.unread, world.known.cloud = world.known.cloud, a_nova([a_node("h1")])
        (chosen,) = await world.conductor.select(an_instance(), force_hosts=["new"])

    assert [each["service_host"] for each in chosen] == ["new"]
