"""How a cloud at rest is read: what takes long comes last."""

import asyncio
from typing import Any
from unittest import mock

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance, InstanceActive
from engine.flavors import Flavor, InstanceId, instance_id_of
from engine.hosts import HostState
from laboratory import at_rest
from laboratory.at_rest import Asked
from laboratory.temporary_cloud import CloudPlan, TemporaryCloud, temporary_cloud
from moor.books.auditing import AuditResult, audited
from moor.client.bus_client import Asks, hearing
from moor.client.requests import new_request_ids
from moor.worker_settings import CloudSettings
from tests.asking import hosts_of, until_choosable

FLAVOR = Flavor(name="small", vcpus=1, ram_mb=512, root_gb=1)
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}


async def booted(cloud: TemporaryCloud, count: int) -> list[InstanceId]:
    (request,) = new_request_ids(1)
    left = {instance_id_of(request, number) for number in range(count)}
    ids = [*left]
    async with asyncio.timeout(60), hearing(cloud.client, "instance.active.#") as heard:
        cloud.client.publisher.send(BuildInstance(request_id=request, flavor=FLAVOR, count=count))
        async for some in heard:
            left -= {each.message.instance.id for each in some if isinstance(each.message, InstanceActive)}
            if not left:
                break
    return ids


async def has_reported(cloud: TemporaryCloud, count: int) -> None:
    async with asyncio.timeout(60):
        while sum([host.instances for host in await hosts_of(cloud.client)]) < count:
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_the_audit_waits_until_hosts_have_reported_their_number_of_instances() -> None:
    """They do so seconds after the last one. An audit of a large cloud takes longer, and was made again each time."""
    late, audits = 2, 0

    async def reported(asking: Asks) -> list[HostState]:
        nonlocal late
        late -= 1
        hosts = await hosts_of(asking)
        return [structs.replace(host, instances=0) for host in hosts] if late >= 0 else hosts

    async def counted(*arguments: Any, **named: Any) -> AuditResult:
        nonlocal audits
        audits += 1
        return await audited(*arguments, **named)

    plan = CloudPlan(role="test", cells={"c1": 2}, counts={}, settings=CloudSettings())
    async with temporary_cloud(plan, None) as cloud:
        await until_choosable(cloud.client, lambda hosts: len(hosts) == 2)
        asked = {id_: Asked("active", AMOUNTS) for id_ in await booted(cloud, 3)}
        await has_reported(cloud, 3)
        with (
            mock.patch.multiple(at_rest, hosts_of=reported, audited=counted),
            mock.patch.object(at_rest, "PATIENCE_S", 5.0),
        ):
            assert await at_rest.problems_left(cloud, asked) == []
            assert (late, audits) == (-2, 1)
            # What does not pass is found all the same, and the audit is made.
            missing = {**asked, InstanceId(new_request_ids(1)[0]): Asked("active", AMOUNTS)}
            with mock.patch.object(at_rest, "PATIENCE_S", 0.0):
                assert len(await at_rest.problems_left(cloud, missing)) == 1
            assert audits == 2


@pytest.mark.asyncio
async def test_all_pages_of_instances_are_found() -> None:
    plan = CloudPlan(role="test", cells={"c1": 2}, counts={}, settings=CloudSettings())
    async with temporary_cloud(plan, None) as cloud:
        await until_choosable(cloud.client, lambda hosts: len(hosts) == 2)
        ids = await booted(cloud, 7)
        with mock.patch.multiple(at_rest, INSTANCES_PAGE=2, PAGES_AT_ONCE=3):
            pages = await at_rest.found_instances(cloud.client, ids)

    assert [len(page.instances) for page in pages] == [2, 2, 2, 1]
    assert sorted(each.id for page in pages for each in page.instances) == sorted(ids)
