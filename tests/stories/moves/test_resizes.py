"""Instances are resized again and again, from every size that they may have got: what a resize does not name stays. Each
story ends with an audit, which compares each claim with the size that the row asks for.
"""

from collections.abc import Mapping
from uuid import UUID, uuid5

import pytest

from bus.messages.administration import (
    AskConsumer,
    ConsumerFound,
    CreateClass,
    CreateProvider,
    ProviderWritten,
    PutInventory,
    WriteAnswered,
)
from bus.messages.build import AskInstances, BuildInstance, FlavorChange, InstancesFound, InstanceState, Size
from bus.messages.hosts import SetHost
from bus.messages.moves import EndMove, MoveInstance
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import ProviderId, ReportedInventory
from moor.client.bus_client import answer_of, hosts_of
from tests.stories.moves.books_stage import BooksStage, books_stage
from tests.stories.moves.test_audit import STAGES
from tests.waiting import until

pytestmark = pytest.mark.asyncio

ONE = RequestId(UUID(int=1))
SMALL = Flavor(name="small", vcpus=2, ram_mb=1024, root_gb=3)
# All sizes from one provider that has GPUs; the rest from the host's others.
ON_GPU = Flavor(
    name="gpu",
    vcpus=1,
    ram_mb=512,
    root_gb=3,
    extra_specs={"resources_GPU:VGPU": "2", "resources_GPU:CUSTOM_GPU_SLICE": "1"},
)


class Resizes:
    """One instance, and what is asked and told about it."""

    def __init__(self, stage: BooksStage) -> None:
        self.stage = stage
        self.requests = 100

    async def boot(self, **fields: object) -> None:
        await self.stage.client.send(BuildInstance(request_id=ONE, instance_ids=(self.id,), **fields))  # type: ignore[arg-type]
        await self.stage.until([self.id], {"active"})

    @property
    def id(self) -> InstanceId:
        return self.stage.ids_of(1)[0]

    async def state(self) -> InstanceState:
        return (await self.stage.states([self.id]))[self.id]

    async def resize(self, *hosts: str, **change: object) -> None:
        """Resize it, on one of these hosts if there are any, and confirm that."""
        self.requests += 1
        request = RequestId(UUID(int=self.requests))
        order = MoveInstance(
            request_id=request,
            instance=self.id,
            kind="resize",
            change=FlavorChange(**change),  # type: ignore[arg-type]
            hosts=hosts,
            confirm_s=3600,
        )
        await answer_of(self.stage.client, order, InstancesFound)
        await self.stage.until([self.id], {"moved"})
        # While it waits to be confirmed, its claim is judged by the new size.
        await self.stage.until_silent()
        end = EndMove(request_id=request, instance=self.id, how="confirm")
        await answer_of(self.stage.client, end, InstancesFound)
        await self.stage.until([self.id], {"active"})

    async def evacuate(self) -> None:
        host = (await self.state()).host
        await self.stage.client.ask(SetHost(host=host, mode="down", reason="no power"))
        order = MoveInstance(request_id=RequestId(UUID(int=99)), instance=self.id, kind="evacuate")
        # The schedulers may not have heard yet that the host is gone.
        await until(
            lambda: self.stage.client.ask(order),
            f"{host} is evacuated",
            lambda answer: isinstance(answer, InstancesFound),
        )
        await until(
            self.state,
            f"it has left {host}",
            lambda now: (now.state, now.host != host) == ("active", True),
        )

    async def check(self, size: Size) -> None:
        """Placement holds this size, the row tells it, and all books agree."""
        assert await self.held() == size.amounts
        found = await answer_of(self.stage.client, AskInstances(instances=(self.id,)), InstancesFound)
        assert [each.size for each in found.details] == [size]
        await self.stage.until_silent()

    async def held(self) -> Mapping[str, int]:
        found = await answer_of(self.stage.client, AskConsumer(consumer=self.id), ConsumerFound)
        assert found.consumer is not None
        held: dict[str, int] = {}
        for each in found.consumer.held:
            held[each.resource] = held.get(each.resource, 0) + each.amount
        return held


@pytest.mark.parametrize("kind", STAGES)
async def test_after_an_evacuation_a_resize_keeps_what_an_earlier_one_gave(kind: str) -> None:
    async with books_stage(kind) as stage:
        here = Resizes(stage)
        await here.boot(flavor=SMALL)
        await here.resize(vcpus=4)
        await here.evacuate()
        assert await here.held() == {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 3}
        for host in await hosts_of(stage.client):
            await stage.client.ask(SetHost(host=host.name, mode="up"))

        await here.resize((await here.state()).host, root_gb=5)
        await here.check(Size("small", {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 5}))


@pytest.mark.parametrize("kind", STAGES)
async def test_a_granular_group_of_gpus_survives_two_resizes(kind: str) -> None:
    async with books_stage(kind) as stage:
        await _add_gpus(stage)
        here = Resizes(stage)
        await here.boot(flavor=ON_GPU)
        size = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 3, "VGPU": 2, "CUSTOM_GPU_SLICE": 1}
        await here.check(Size("gpu", size))

        await here.resize(vcpus=3)
        await here.check(Size("gpu", size | {"VCPU": 3}))
        await here.resize(extra_specs={"resources_GPU:VGPU": "3"})
        await here.check(Size("gpu", size | {"VCPU": 3, "VGPU": 3}))
        found = await answer_of(stage.client, AskConsumer(consumer=here.id), ConsumerFound)
        assert found.consumer is not None
        # Both classes of the group come from one provider still.
        assert len({each.provider for each in found.consumer.held if "GPU" in each.resource}) == 1


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
