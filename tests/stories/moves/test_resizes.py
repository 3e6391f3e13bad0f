"""Instances are resized again and again, from every size that they may have got: what a resize does not name stays. Each
story ends with an audit, which compares each claim with the size that the row asks for.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid5

import pytest
from msgspec import structs

from bus.messages.books import (
    AskConsumer,
    AskQuotas,
    ConsumerFound,
    CreateClass,
    CreateProvider,
    Done,
    ProviderWritten,
    PutInventory,
    QuotasFound,
    SetQuota,
    WriteAnswered,
)
from bus.messages.build import (
    AskInstances,
    BuildInstance,
    FlavorChange,
    InstancesFound,
    InstanceState,
    Size,
)
from bus.messages.hosts import SetHost
from bus.messages.moves import MoveInstance
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import ProviderId, ReportedInventory
from moor.client.bus_client import answer_of, hosts_of
from tests.narrowing import present
from tests.stories.moves.books_stage import BooksStage, books_stage
from tests.stories.moves.test_audit import STAGES
from tests.waiting import until

SMALL = Flavor(name="small", vcpus=2, ram_mb=1024, root_gb=3)
# All sizes from one provider that has GPUs; the rest from the host's others.
ON_GPU = Flavor(
    name="gpu",
    vcpus=1,
    ram_mb=512,
    root_gb=3,
    extra_specs={"resources_GPU:VGPU": "2", "resources_GPU:CUSTOM_GPU_SLICE": "1"},
)


async def booted(stage: BooksStage, *ends: str, number: int = 1, **fields: object) -> InstanceState:
    """One instance, in one of these states, by default active."""
    (instance,) = ids = stage.ids_of(number)
    await stage.client.send(
        structs.replace(BuildInstance(request_id=RequestId(UUID(int=number)), instance_ids=ids), **fields)
    )
    await stage.until(ids, ends or {"active"})
    return await stage.state(instance)


async def resize(stage: BooksStage, instance: InstanceId, *hosts: str, **change: Any) -> None:
    """Resize it, on one of these hosts if there are any, and confirm that."""
    await stage.move(instance, "resize", "moved", change=FlavorChange(**change), hosts=hosts)
    # While it waits to be confirmed, its claim is judged by the new size.
    await stage.until_silent()
    await stage.end(instance, "confirm")


async def evacuate(stage: BooksStage, instance: InstanceId) -> str:
    """Its new host."""
    host = (await stage.state(instance)).host
    await stage.client.ask(SetHost(host=host, mode="down", reason="no power"))
    order = MoveInstance(request_id=RequestId(UUID(int=99)), instance=instance, kind="evacuate")
    # The schedulers may not have heard yet that the host is gone.
    await until(
        lambda: stage.client.ask(order),
        f"{host} is evacuated",
        lambda answer: isinstance(answer, InstancesFound),
    )
    now = await until(
        lambda: stage.state(instance),
        f"it has left {host}",
        lambda now: (now.state, now.host != host) == ("active", True),
    )
    return now.host


async def check(stage: BooksStage, instance: InstanceId, size: Size) -> None:
    """Placement holds this size, the row tells it, and all books agree."""
    assert await held(stage, instance) == size.amounts
    found = await answer_of(stage.client, AskInstances(instances=(instance,)), InstancesFound)
    assert [each.size for each in found.details] == [size]
    await stage.until_silent()


async def held(stage: BooksStage, instance: InstanceId) -> Mapping[str, int]:
    found = await answer_of(stage.client, AskConsumer(consumer=instance), ConsumerFound)
    assert found.consumer is not None
    held: Counter[str] = Counter()
    for each in found.consumer.held:
        held[each.resource] += each.amount
    return held


@pytest.mark.parametrize("kind", STAGES)
async def test_after_an_evacuation_a_resize_keeps_what_an_earlier_one_gave(kind: str) -> None:
    async with books_stage(kind) as stage:
        instance = (await booted(stage, flavor=SMALL)).id
        await resize(stage, instance, vcpus=4)
        where = await evacuate(stage, instance)
        assert await held(stage, instance) == {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 3}
        for host in await hosts_of(stage.client):
            await stage.client.ask(SetHost(host=host.name, mode="up"))

        await resize(stage, instance, where, root_gb=5)
        await check(stage, instance, Size("small", {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 5}))


@pytest.mark.parametrize("kind", STAGES)
async def test_a_granular_group_of_gpus_survives_two_resizes(kind: str) -> None:
    async with books_stage(kind) as stage:
        await _add_gpus(stage)
        instance = (await booted(stage, flavor=ON_GPU)).id
        size = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 3, "VGPU": 2, "CUSTOM_GPU_SLICE": 1}
        await check(stage, instance, Size("gpu", size))

        await resize(stage, instance, vcpus=3)
        await check(stage, instance, Size("gpu", size | {"VCPU": 3}))
        await resize(stage, instance, extra_specs={"resources_GPU:VGPU": "3"})
        await check(stage, instance, Size("gpu", size | {"VCPU": 3, "VGPU": 3}))
        found = await answer_of(stage.client, AskConsumer(consumer=instance), ConsumerFound)
        # Both classes of the group come from one provider still.
        assert len({each.provider for each in present(found.consumer).held if "GPU" in each.resource}) == 1


async def _add_gpus(stage: BooksStage) -> None:
    """Below each host there are two GPUs, which an operator adds by hand."""
    await stage.client.ask(CreateClass(name="CUSTOM_GPU_SLICE"))
    for host in await hosts_of(stage.client):
        for number in (1, 2):
            gpu = ProviderId(uuid5(host.id, f"gpu-{number}"))
            created = CreateProvider(id=gpu, name=f"{host.name}-gpu-{number}", parent=host.id)
            assert isinstance(
                (await answer_of(stage.client, created, WriteAnswered)).verdict, ProviderWritten
            )
            for resource in ("VGPU", "CUSTOM_GPU_SLICE"):
                put = PutInventory(
                    provider=gpu,
                    generation=None,
                    resource=resource,
                    inventory=ReportedInventory(total=4),
                    is_new=True,
                )
                assert isinstance(
                    (await answer_of(stage.client, put, WriteAnswered)).verdict, ProviderWritten
                )


# A project at its quota: growth is refused with its numbers, and no way back is. The audit compares what the quota counts with what
# is held.

SHOP = "shop"
TWO = Flavor(name="two", vcpus=2, ram_mb=512, root_gb=1)


async def limit(stage: BooksStage, vcpus: int) -> None:
    assert await stage.client.ask(SetQuota(project=SHOP, limits={"VCPU": vcpus})) == WriteAnswered(
        verdict=Done()
    )


async def used(stage: BooksStage) -> int:
    found = await answer_of(stage.client, AskQuotas(project=SHOP), QuotasFound)
    return found.quotas[0].used.get("VCPU", 0)


@pytest.mark.parametrize("kind", STAGES)
async def test_a_resize_over_the_quota_fails_with_its_numbers_and_a_revert_does_not(kind: str) -> None:
    async with books_stage(kind) as stage:
        await limit(stage, 5)
        one, two = [(await booted(stage, number=number, flavor=TWO, project=SHOP)).id for number in (1, 2)]

        failed = await stage.move(one, "resize", "active", change=FlavorChange(vcpus=4))

        assert present(failed.move).outcome == "failed"
        assert [each.reason for each in failed.failures] == [
            "over the quota of project shop: VCPU limit 5, used 4, asked 2"
        ]
        assert await used(stage) == 4

        await stage.move(one, "resize", "moved", change=FlavorChange(vcpus=1))
        # The room of its old size is not given to others.
        assert (
            await booted(stage, "error", number=3, flavor=TWO, project=SHOP)
        ).reason == "over the quota of project shop: VCPU limit 5, used 4, asked 2"
        await limit(stage, 1)
        await stage.end(one, "revert")
        assert await used(stage) == 4
        # Nor does a lowered limit hinder a migration.
        moved = await stage.move(two, "migrate", "moved")
        assert not present(moved.move).outcome
        await stage.end(two, "revert")
        assert await used(stage) == 4
        await stage.until_silent()
