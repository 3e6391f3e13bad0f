"""How a campaign is followed, and what `drain` and `evacuate_host` begin, tell and cancel; in simulated time, with a keeper in miniature."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import AskInstances, InstancesFound, InstanceState
from bus.messages.hosts import AskHosts, HostsFound
from bus.messages.keeping import (
    AskCampaigns,
    AskMovements,
    CampaignHost,
    CampaignsFound,
    CampaignState,
    Movement,
    MovementId,
    MovementLife,
    MovementsFound,
    SetCampaign,
    StartCampaign,
)
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import ProviderId
from kit.process import stopped_by_signals
from moor.client import CampaignDetails, CampaignWork, Emptied, NotFound, NotInTime, Rejected
from tests.asking import client_of
from tests.simulation.loop import simulated

HOST = ProviderId(UUID(int=1))


def instance(number: int) -> InstanceId:
    return InstanceId(UUID(int=number))


class Keeper:
    """A keeper of a host with so many guests. Two of them move at once, 10 seconds each; those in `stuck` are given up."""

    def __init__(self, guests: int, stuck: Callable[[int], str] = lambda _: "") -> None:
        self.orders: list[Message] = []
        self.refusal = ""
        # Guests that were deleted before their turn came.
        self.deleted: set[int] = set()
        self._guests = range(1, guests + 1)
        self._stuck = stuck
        self._cancelled_s: float | None = None
        self._state: CampaignState | None = None

    async def ask(self, question: Message) -> Message:
        match question:
            case StartCampaign():
                self.orders.append(question)
                self._state = CampaignState(id=question.id, name="c", work=question.work)
                return CampaignsFound(campaigns=(self._now(),))
            case SetCampaign():
                self.orders.append(question)
                self._cancelled_s = self._passed_s()
                return CampaignsFound(campaigns=(self._now(),))
            case AskCampaigns():
                return CampaignsFound(campaigns=(self._now(),) if self._state else (), hosts=(self._host(),))
            case AskMovements():
                return MovementsFound(movements=tuple(map(self._movement, self._guests)))
            case AskHosts():
                return HostsFound(hosts=(HostState(id=HOST, name="h1", cell="c1", up=True),))
            case AskInstances():
                return InstancesFound(instances=tuple(map(self._guest, question.instances)))
        raise AssertionError(question)

    def _guest(self, id_: InstanceId) -> InstanceState:
        is_gone = self._movement(id_.int).life == "done"
        return InstanceState(
            id=id_,
            request_id=RequestId(UUID(int=100)),
            sequence=1,
            state="deleted" if id_.int in self.deleted else "active",
            cell="c1",
            host="h2" if is_gone else "h1",
            attempt=1,
        )

    def _passed_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _movement(self, number: int) -> Movement:
        """The first two move at once, and the next two then."""
        turn = (number - 1) // 2 * 10.0
        begun = self._passed_s() >= turn and (self._cancelled_s is None or self._cancelled_s >= turn)
        life: MovementLife = "withdrawn" if number in self.deleted else "planned"
        if begun and life == "planned":
            life = "moving" if self._passed_s() < turn + 10 else "given_up" if self._stuck(number) else "done"
        movement = Movement(
            id=MovementId(UUID(int=number)),
            instance=instance(number),
            campaign=self._now_id(),
            cause="c",
            cell="c1",
            host="h1",
            life="withdrawn" if life == "planned" and self._cancelled_s is not None else life,
        )
        return structs.replace(movement, reason=self._stuck(number) if life == "given_up" else "")

    def _now_id(self) -> Any:
        assert self._state is not None
        return self._state.id

    def _host(self) -> CampaignHost:
        lives = [self._movement(each).life for each in self._guests] if self._state else []
        is_over = {*lives} <= {"done", "given_up", "withdrawn"}
        return CampaignHost(
            id=HOST,
            host="h1",
            cell="c1",
            stage="failed"
            if self.refusal or (is_over and "given_up" in lives)
            else "done"
            if is_over
            else "emptying",
            reason=self.refusal,
            left=sum(each in ("planned", "moving") for each in lives),
            moved=lives.count("done"),
            stay=lives.count("given_up"),
        )

    def _now(self) -> CampaignState:
        assert self._state is not None
        stage = self._host().stage
        life = (
            "cancelled"
            if self._cancelled_s is not None
            else {"done": "done", "failed": "stopped"}.get(stage, "running")
        )
        return structs.replace(self._state, life=life)


def stayed(done: Emptied) -> dict[int, str]:
    return {each.instance.int: each.reason for each in done.stayed}


def kinds(keeper: Keeper) -> list[str]:
    return [type(each).__name__ for each in keeper.orders]


@simulated
async def test_a_drain_is_a_campaign_of_one_host_and_tells_how_far_it_is() -> None:
    keeper, told = Keeper(6, lambda number: "no host has room" if number == 2 else ""), list[CampaignHost]()
    keeper.deleted = {6}
    done = await client_of(keeper).drain(
        "h1", hosts=("h2", "h3"), wait=60, at_once=2, reason="new disk", for_user="ann", tell=told.append
    )

    (order,) = keeper.orders
    assert isinstance(order, StartCampaign)
    work = order.work
    assert (work.kind, work.hosts, work.to, work.then) == ("drain", ("c1/h1",), ("h2", "h3"), "disable")
    assert (work.wait_s, work.guests_at_once, work.reason, order.for_user) == (60, 2, "new disk", "ann")
    assert [(each.moved, each.left, each.stay) for each in told] == [
        (0, 5, 0),
        (1, 3, 1),
        (3, 1, 1),
        (4, 0, 1),
    ]
    assert [each.id.int for each in done.moved] == [1, 3, 4, 5, 6]
    assert (done.host, stayed(done)) == ("c1/h1", {2: "no host has room"})


@simulated
async def test_when_the_time_is_up_the_campaign_is_cancelled_and_what_moves_goes_on() -> None:
    keeper = Keeper(6)
    done = await client_of(keeper).drain("h1", timeout_s=15)

    assert kinds(keeper) == ["StartCampaign", "SetCampaign"]
    assert [each.id.int for each in done.moved] == [1, 2]
    assert stayed(done) == {
        **dict.fromkeys((3, 4), "its move goes on"),
        **dict.fromkeys((5, 6), "its turn did not come"),
    }


@simulated
async def test_a_signal_cancels_the_campaign_and_what_became_of_each_instance_is_still_said() -> None:
    keeper = Keeper(6)
    with stopped_by_signals() as stop:
        asyncio.get_running_loop().call_at(12, os.kill, os.getpid(), signal.SIGINT)
        done = await client_of(keeper).drain("h1", stop=stop)

    assert kinds(keeper) == ["StartCampaign", "SetCampaign"]
    assert (len(done.moved), {*stayed(done)}) == (2, {3, 4, 5, 6})


@simulated
async def test_an_evacuation_waits_for_a_day_unless_it_is_told_else() -> None:
    keeper = Keeper(1)
    await client_of(keeper).evacuate_host("h1")
    await client_of(keeper).evacuate_host("h1", wait=0)
    works = [each.work for each in keeper.orders if isinstance(each, StartCampaign)]
    assert [(each.kind, each.hosts, each.wait_s) for each in works] == [
        ("evacuate", ("h1",), 86400),
        ("evacuate", ("h1",), 0),
    ]


@simulated
async def test_a_host_that_the_campaign_cannot_take_is_an_error_with_its_reason() -> None:
    keeper = Keeper(0)
    keeper.refusal = "it is dead"
    with pytest.raises(Rejected, match="it is dead"):
        await client_of(keeper).drain("h1")


@simulated
async def test_a_campaign_is_followed_to_its_end_or_until_the_time_is_up_and_goes_on() -> None:
    keeper, told = Keeper(4), list[CampaignDetails]()
    moor = client_of(keeper)
    with pytest.raises(NotFound):
        await moor.follow_campaign("")
    campaign = (await moor.start_campaign(CampaignWork(hosts=("h1",)))).id
    with pytest.raises(NotInTime, match="campaign c has not ended within 5 s"):
        await moor.follow_campaign(campaign, timeout_s=5)

    found = await moor.follow_campaign(campaign, tell=told.append)

    assert (found.campaign.life, found.hosts[0].stage) == ("done", "done")
    assert [each.hosts[0].moved for each in told] == [0, 2, 4]
    assert kinds(keeper) == ["StartCampaign"]
