"""What happens while a keeper asks where guests would go counts when it grants: on both databases."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.keeping import BudgetState, CampaignHost, CampaignState, CampaignWork, MoveBudget, Movement
from bus.messages.planning import DrainedInstance
from engine.flavors import InstanceId
from keeper import store_sql as rows
from keeper.asking import Schedulers
from keeper.balancing import Balancing
from keeper.core.campaigns import OPEN
from keeper.granting import Granting
from keeper.settings import PACE
from keeper.store_sql import KeeperStore
from tests.contracts.stores import STORES, open_keeper_store
from tests.contracts.test_keeper_store import NOON, begin, host, movement

MANY = 5
Meanwhile = Callable[[], Awaitable[object]]


async def nothing() -> None:
    """Nothing happens."""


async def asks_nothing(_: Sequence[Message]) -> Sequence[Message]:
    raise AssertionError("only plans are asked for here")


class Planning(Schedulers):
    """Schedulers by which each guest would go to h2. While they are asked, something happens."""

    def __init__(self, meanwhile: Meanwhile) -> None:
        super().__init__(asks_nothing)
        self._meanwhile = meanwhile

    async def plan(
        self,
        instances: Sequence[InstanceId],
        work: CampaignWork,  # noqa: ARG002
        avoid: Iterable[CampaignHost] = (),  # noqa: ARG002
        wishes: Mapping[InstanceId, str] | None = None,  # noqa: ARG002
    ) -> dict[InstanceId, DrainedInstance]:
        if instances:
            await self._meanwhile()
        return {each: DrainedInstance(id=each, to="h2", cell="c1") for each in instances}


def a_keeper(store: KeeperStore, meanwhile: Meanwhile = nothing, *, at: datetime = NOON) -> Granting:
    schedulers = Planning(meanwhile)
    return Granting(schedulers, store, Balancing(schedulers, store, lambda: at), lambda: at, PACE)


class Cloud:
    """A campaign with guests, in a database."""

    def __init__(self, store: KeeperStore, campaign: CampaignState) -> None:
        self.store = store
        self.campaign = campaign

    async def write(self, row: Callable[..., None], *values: object) -> None:
        async with self.store.transaction() as transaction:
            await transaction.run(row, *values)

    async def movements(self) -> list[Movement]:
        return await self.store.read(rows.movements_of, self.campaign.id, (*OPEN, "withdrawn"))


@pytest.fixture(params=STORES)
async def cloud(request: pytest.FixtureRequest) -> AsyncIterator[Cloud]:
    async with open_keeper_store(request.param) as store:
        made = Cloud(store, await begin(store))
        async with store.transaction() as transaction:
            await transaction.run(rows.save_hosts, made.campaign.id, [host(1, stage="emptying")])
        await made.write(rows.add_movements, [movement(number) for number in range(1, MANY + 1)])
        yield made


async def test_what_another_keeper_grants_meanwhile_is_not_granted_again(cloud: Cloud) -> None:
    granted: list[int] = []

    async def another_grants() -> None:
        granted.append(await a_keeper(cloud.store).grant(cloud.campaign))

    late = a_keeper(cloud.store, another_grants, at=datetime(2026, 11, 30, 13, tzinfo=UTC))

    assert await late.grant(cloud.campaign) == 0
    assert granted == [MANY]
    assert {(each.life, each.granted_at) for each in await cloud.movements()} == {("granted", NOON)}


@pytest.mark.parametrize("life", ["paused", "cancelled"])
async def test_a_campaign_that_is_paused_meanwhile_moves_nobody(cloud: Cloud, life: str) -> None:
    stopped = structs.replace(cloud.campaign, life=life)
    keeper = a_keeper(cloud.store, lambda: cloud.write(rows.save_campaign, stopped))

    assert await keeper.grant(cloud.campaign) == 0
    assert {each.life for each in await cloud.movements()} == {"planned"}


async def test_a_budget_that_is_set_meanwhile_holds(cloud: Cloud) -> None:
    budget = BudgetState(budget=MoveBudget(name="slow", scope="host", side="in", at_once=2), set_at=NOON)
    keeper = a_keeper(cloud.store, lambda: cloud.write(rows.save_budget, budget))

    assert await keeper.grant(cloud.campaign) == 2
    waits = [each.reason for each in await cloud.movements() if each.life == "planned"]
    assert len(waits) == MANY - 2
    assert {*waits} == {"budget slow: 2 of c1/h2 may move at once"}
    # They rest for a while, so that no host is sought for them again and again.
    assert await keeper.grant(cloud.campaign) == 0
    later = a_keeper(cloud.store, at=NOON + timedelta(seconds=PACE.rest_s))
    assert await later.grant(cloud.campaign) == 0


async def test_one_that_has_left_meanwhile_is_not_granted(cloud: Cloud) -> None:
    left = movement(3, life="withdrawn", ended_at=NOON)
    keeper = a_keeper(cloud.store, lambda: cloud.write(rows.save_movements, [left]))

    assert await keeper.grant(cloud.campaign) == MANY - 1
    found = {each.id: each.life for each in await cloud.movements()}
    assert found.pop(left.id) == "withdrawn"
    assert {*found.values()} == {"granted"}
    assert all(each.to == "h2" for each in await cloud.movements() if each.life == "granted")


async def test_nothing_is_granted_from_a_host_that_is_not_emptied_any_more(cloud: Cloud) -> None:
    """A move that failed after a person has set its host up again is not tried again."""
    async with cloud.store.transaction() as transaction:
        await transaction.run(rows.save_hosts, cloud.campaign.id, [host(1, stage="failed")])
    assert await a_keeper(cloud.store).grant(cloud.campaign) == 0
    assert {each.life for each in await cloud.movements()} == {"planned"}
