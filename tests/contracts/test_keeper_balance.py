"""What becomes of a balance's steps when something else happens meanwhile, and whose a host is: on both databases."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import BuildRejected, InstanceDetails, InstanceState
from bus.messages.keeping import CampaignId, CampaignState, CampaignWork, Movement, MovementLife
from bus.messages.policies import KeepingPolicy, PolicyState
from bus.workers.connections import Station
from engine.balancing import BalanceStep, MovableGuest
from engine.flavors import InstanceId, RequestId
from engine.goals import BalanceFigures
from engine.hosts import HostState
from keeper import store_sql as rows
from keeper.asking import Schedulers
from keeper.balancing import BalancePlan, Balancing, ContinuousBalance
from keeper.beginning import begin_campaign
from keeper.core.campaigns import GRANTED, MOVING, PLANNED
from keeper.core.weeks import weeks_of
from keeper.granting import Granting
from keeper.settings import PACE
from keeper.store_sql import KeeperStore
from tests.contracts.stores import STORES, open_keeper_store
from tests.contracts.test_keeper_store import NOON, host, movement
from tests.waiting import until

WITHDRAWN: tuple[MovementLife, ...] = ("withdrawn",)
Meanwhile = Callable[[], Awaitable[object]]
BALANCE = CampaignState(
    id=CampaignId(UUID(int=50)),
    name="even",
    work=CampaignWork(kind="balance", goal="even", rest_s=3600),
    asked_at=NOON,
)
DRAIN = CampaignState(
    id=CampaignId(UUID(int=51)), name="drain", work=CampaignWork(hosts=("h1",)), asked_at=NOON
)


async def asks_nothing(_: Sequence[Message]) -> Sequence[Message]:
    raise AssertionError("nobody is asked here")


async def nothing() -> None:
    """Nothing happens."""


class Judging(Balancing):
    """Each step still gains something. While that is found out, something happens."""

    def __init__(self, store: KeeperStore, meanwhile: Meanwhile) -> None:
        super().__init__(Schedulers(asks_nothing), store, lambda: NOON)
        self._meanwhile = meanwhile

    async def judged(
        self,
        campaign: CampaignState,  # noqa: ARG002
        steps: Sequence[Movement],
    ) -> dict[InstanceId, Movement]:
        await self._meanwhile()
        return {each.instance: structs.replace(each, to="h2") for each in steps}


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[KeeperStore]:
    async with open_keeper_store(request.param) as opened:
        yield opened


def step(number: int, **fields: object) -> Movement:
    return structs.replace(movement(number), campaign=BALANCE.id, wish="c1/h2", **fields)


async def even(store: KeeperStore) -> None:
    """A balance that has two guests of h1 to move."""
    giving = host(1, stage="giving")
    await begin_campaign(store, BALANCE, [giving], [step(1), step(2)])


async def granted(store: KeeperStore, meanwhile: Meanwhile = nothing) -> dict[int, str]:
    balancing = Judging(store, meanwhile)
    granting = Granting(Schedulers(asks_nothing), store, balancing, lambda: NOON, PACE)
    await granting.grant(BALANCE)
    found = await store.read(rows.movements_of, BALANCE.id, (*PLANNED, *GRANTED, *WITHDRAWN))
    return {each.instance.int: f"{each.life} {each.reason}".rstrip() for each in found}


async def test_a_guest_that_has_moved_meanwhile_rests(store: KeeperStore) -> None:
    await even(store)
    first, _ = sorted(await store.read(rows.movements_of, BALANCE.id, PLANNED), key=lambda each: each.id)

    def moved(ago_s: float) -> Meanwhile:
        async def move() -> None:
            done = structs.replace(
                first,
                id=structs.replace(movement(90)).id,
                campaign=DRAIN.id,
                life="done",
                ended_at=NOON - timedelta(seconds=ago_s),
            )
            async with store.transaction() as transaction:
                await transaction.run(rows.add_movements, [done])

        return move

    told = await granted(store, moved(60))
    assert told.pop(first.instance.int) == "withdrawn it has moved meanwhile, and rests"
    assert [*told.values()] == ["granted"]


async def test_a_guest_that_moved_long_ago_may_move(store: KeeperStore) -> None:
    await even(store)
    done = structs.replace(
        step(1), id=movement(90).id, life="done", ended_at=NOON - timedelta(seconds=3601), campaign=DRAIN.id
    )
    async with store.transaction() as transaction:
        await transaction.run(rows.add_movements, [done])
    assert {*(await granted(store)).values()} == {"granted"}


async def test_a_host_is_taken_from_a_balance_and_from_nothing_else(store: KeeperStore) -> None:
    await even(store)
    going, _ = await store.read(rows.movements_of, BALANCE.id, PLANNED)
    async with store.transaction() as transaction:
        await transaction.run(rows.save_movements, [structs.replace(going, life="moving")])

    other = structs.replace(BALANCE, id=CampaignId(UUID(int=52)), name="again")
    refused = await begin_campaign(store, other, [host(1, stage="giving")])
    assert isinstance(refused, BuildRejected)
    assert "campaign even has it" in refused.reason

    assert await begin_campaign(store, DRAIN, [host(1)]) == DRAIN
    (given,) = await store.read(rows.host_page, BALANCE.id, None, 9)
    assert (given.stage, given.reason) == ("failed", "campaign drain has it now")
    assert [each.id for each in await store.read(rows.movements_of, DRAIN.id, MOVING)] == [going.id]
    (withdrawn,) = await store.read(rows.movements_of, BALANCE.id, WITHDRAWN)
    assert withdrawn.reason == "campaign drain has it now"

    late = structs.replace(DRAIN, id=CampaignId(UUID(int=53)), name="late")
    assert isinstance(await begin_campaign(store, late, [host(1)]), BuildRejected)
    # The same order again changes nothing.
    assert await begin_campaign(store, DRAIN, [host(1)]) == DRAIN


async def test_weeks_are_of_the_rows_of_campaigns_and_losses(store: KeeperStore) -> None:
    figures = {"before": BalanceFigures(spread=0.4), "promised": BalanceFigures(spread=0.1)}
    await begin_campaign(store, structs.replace(BALANCE, **figures), [host(1, stage="giving")], [step(1)])
    old = structs.replace(DRAIN, asked_at=NOON - timedelta(weeks=9))
    lost = host(2, lost_at=NOON - timedelta(seconds=70), ended_at=NOON, stage="done", moved=3)
    async with store.transaction() as transaction:
        await transaction.run(rows.add_campaign, old)
        await transaction.run(rows.add_hosts, BALANCE.id, [lost])
    since = NOON - timedelta(weeks=1)
    campaigns = await store.read(rows.campaigns_since, since)
    losses = [each for each, is_late in await store.read(rows.losses_since, since, ()) if is_late]
    assert [each.id for each in campaigns] == [BALANCE.id]
    (week,) = weeks_of(campaigns, losses, since)
    assert (week.lost, week.recovered, week.seconds, week.moved, week.promised) == (1, 1, 70, 3, 75.0)


class Promising(Balancing):
    """A plan promises to halve the spread."""

    asked = 0

    async def plan(self, work: CampaignWork) -> BalancePlan:
        assert (work.goal, work.cell) == ("even", "c1")
        self.asked += 1
        state = HostState(id=host(1).id, name="h1", cell="c1", up=True)
        guest = movement(1).instance
        told = InstanceState(
            id=guest, request_id=RequestId(guest), sequence=1, state="active", cell="c1", host="h1"
        )
        step = BalanceStep(MovableGuest(guest, "c1/h1", {"VCPU": 1}), "c1/h2", 0.1)
        return BalancePlan(
            steps=[step],
            guests={guest: (told, InstanceDetails(id=guest))},
            hosts={"c1/h1": state},
            before=BalanceFigures(spread=0.4),
            after=BalanceFigures(spread=0.2),
        )


@pytest.mark.parametrize(("least", "campaigns"), [(60, 0), (50, 1), (None, 1)])
async def test_a_policy_has_a_plan_carried_out_that_gains_enough(
    store: KeeperStore, least: int | None, campaigns: int
) -> None:
    policy = KeepingPolicy(scope="cell", of="c1", balance="even", gain_min=least)
    async with store.transaction() as transaction:
        await transaction.run(rows.save_policy, PolicyState(policy=policy, set_at=NOON))
    balancing = Promising(Schedulers(asks_nothing), store, lambda: NOON)
    woken: list[bool] = []
    hours = itertools.count()
    quick = structs.replace(PACE, balance_s=0.01)
    part = ContinuousBalance(
        Station(MemoryBroker().as_user(), "keeper-1"),
        balancing,
        store,
        lambda: woken.append(True),
        clock=lambda: NOON + timedelta(hours=next(hours)),
        pace=quick,
    )
    running = asyncio.create_task(part.looking.run())
    # The next hour it looks again, if nothing was begun.
    await until(lambda: woken or balancing.asked > 1, "it has looked")
    await part.looking.stop()
    await running
    found = await store.read(rows.campaigns_since, NOON - timedelta(hours=1))
    assert [(each.name, each.by) for each in found] == [("balance-cell-c1", "keeper")] * campaigns
    assert len(woken) == campaigns
