"""Instances that move while their project is at its quota: growth is refused with its numbers, and no way back is. Each story ends
with an audit, which compares what the quota counts with what is held.
"""

from uuid import UUID

import pytest

from bus.messages.administration import AskQuotas, Done, QuotasFound, SetQuota, WriteAnswered
from bus.messages.build import BuildInstance, FlavorChange, InstancesFound, InstanceState, MoveKind
from bus.messages.moves import EndMove, MoveInstance
from engine.flavors import Flavor, InstanceId, RequestId
from moor.client.bus_client import answer_of
from tests.asking import state_of, until_state
from tests.stories.moves.books_stage import BooksStage, books_stage
from tests.stories.moves.test_audit import STAGES
from tests.waiting import until

pytestmark = pytest.mark.asyncio

SHOP = "shop"
TWO = Flavor(name="two", vcpus=2, ram_mb=512, root_gb=1)


class Shop:
    """A project with a limit on processors, and its instances, by number."""

    def __init__(self, stage: BooksStage) -> None:
        self.stage = stage
        self.orders = 100

    async def limit(self, vcpus: int) -> None:
        order = SetQuota(project=SHOP, limits={"VCPU": vcpus})
        assert await self.stage.client.ask(order) == WriteAnswered(verdict=Done())

    async def used(self) -> int:
        found = await answer_of(self.stage.client, AskQuotas(project=SHOP), QuotasFound)
        return found.quotas[0].used.get("VCPU", 0)

    async def boot(self, number: int, *ends: str) -> InstanceState:
        build = BuildInstance(
            request_id=RequestId(UUID(int=number)), instance_ids=(self.id(number),), flavor=TWO, project=SHOP
        )
        await self.stage.client.send(build)
        return await self.until(number, *ends)

    def id(self, number: int) -> InstanceId:
        return self.stage.ids_of(number)[0]

    async def until(self, number: int, *ends: str) -> InstanceState:
        return await until_state(self.stage.client, self.id(number), *ends)

    async def move(self, number: int, kind: MoveKind, *ends: str, vcpus: int | None = None) -> InstanceState:
        self.orders += 1
        change = None if vcpus is None else FlavorChange(vcpus=vcpus)
        order = MoveInstance(
            request_id=RequestId(UUID(int=self.orders)), instance=self.id(number), kind=kind, change=change
        )
        await answer_of(self.stage.client, order, InstancesFound)
        return await until(
            lambda: state_of(self.stage.client, self.id(number)),
            f"{kind} has ended in {ends}",
            lambda told: told.move and told.move.request_id == order.request_id and told.state in ends,
        )

    async def revert(self, number: int) -> None:
        end = EndMove(request_id=RequestId(UUID(int=self.orders)), instance=self.id(number), how="revert")
        await answer_of(self.stage.client, end, InstancesFound)
        await self.until(number, "active")


@pytest.mark.parametrize("kind", STAGES)
async def test_a_resize_over_the_quota_fails_with_its_numbers_and_a_revert_does_not(kind: str) -> None:
    async with books_stage(kind) as stage:
        shop = Shop(stage)
        await shop.limit(5)
        for number in (1, 2):
            await shop.boot(number, "active")

        failed = await shop.move(1, "resize", "active", vcpus=4)

        assert failed.move is not None
        assert failed.move.outcome == "failed"
        assert [each.reason for each in failed.failures] == [
            "over the quota of project shop: VCPU limit 5, used 4, asked 2"
        ]
        assert await shop.used() == 4

        await shop.move(1, "resize", "moved", vcpus=1)
        # The room of its old size is not given to others.
        refused = await shop.boot(3, "error")
        assert refused.reason == "over the quota of project shop: VCPU limit 5, used 4, asked 2"
        await shop.limit(1)
        await shop.revert(1)
        assert await shop.used() == 4
        # Nor does a lowered limit hinder a migration.
        moved = await shop.move(2, "migrate", "moved")
        assert moved.move is not None
        assert not moved.move.outcome
        await shop.revert(2)
        assert await shop.used() == 4
        await stage.until_silent()
