"""A whole cell of values into which instances of another cloud come, and from which some go back, beside boots.

As in test_conductor_world.py messages come late, twice and in any order, and the conductor dies between commit and publish. Nothing is
ever built for an adopted instance, and a guest that goes back, or that is still wanted, is never destroyed.
"""

import asyncio
import random
from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest

from bus.message import Message
from bus.messages.build import InstanceState
from bus.messages.cell import (
    AdoptGuest,
    AdoptInCell,
    DeployInstance,
    DestroyInstance,
    GiveBackInCell,
    InstanceDestroyed,
    InstanceSpawned,
    LeaveGuest,
    RemoveFromCell,
    SpawnInstance,
    UndeployInstance,
)
from bus.messages.placement import ClaimResources
from cell_conductor.core.rows import SwapAnswered
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import Choice, ConsumerId, ProviderId
from engine.refusals import Claimed
from tests.unit.conductor.test_conductor_world import HOSTS, NODES, World, share

SEEDS = range(150)
HYPERVISORS = [host for host in HOSTS if host not in NODES]


class AdoptingWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.of_adoptions = random.Random(f"{seed} adoptions")
        # The host of each guest of the other cloud; those that go back, and those that a host has destroyed.
        self.guests: dict[InstanceId, ProviderId] = {}
        self.given_back: set[InstanceId] = set()
        self.destroyed: set[InstanceId] = set()
        self.seen = Counter[str]()

    async def _boot(self, number: int) -> None:
        if self.of_adoptions.random() < 0.5:
            await self._adopt(number)
        else:
            await super()._boot(number)

    async def _adopt(self, number: int) -> None:
        host = self.of_adoptions.choice(HYPERVISORS)
        order = AdoptInCell(
            cell="c1",
            instance=InstanceId(ConsumerId(UUID(int=number))),
            request_id=RequestId(UUID(int=1000 + number)),
            sequence=2,
            attempt=1,
            issued_at=self.now,
            ends_by=self.now + timedelta(seconds=600),
            flavor=Flavor(vcpus=1),
            chosen=Choice(name=str(host), share=share(host)),
            state="active",
        )
        claim = ClaimResources(
            cell="c1", consumer=order.instance, attempt=1, issued_at=self.now, share=order.chosen.share
        )
        if await self._placement(claim) != Claimed():
            return
        self.guests[order.instance] = host
        self.orders.append(order)
        self.under_way.append(order)
        ends = self.of_adoptions.choice((None, GiveBackInCell, RemoveFromCell))
        if ends is not None:
            self.removed.add(order.instance)
            self.under_way.append(
                ends(
                    cell="c1",
                    instance=order.instance,
                    request_id=order.request_id,
                    sequence=3,
                    issued_at=self.now,
                )
            )
        if ends is GiveBackInCell:
            self.given_back.add(order.instance)

    def _rebuild(self, told: InstanceState) -> None:
        # The API level gives nothing back that was rebuilt.
        if told.id not in self.given_back:
            super()._rebuild(told)

    async def _deliver(self, each: Message | SwapAnswered) -> None:
        self.seen[type(each).__name__] += 1
        match each:
            case AdoptGuest():
                self._adopt_guest(each)
            case LeaveGuest():
                self._leave(each)
            case AdoptInCell() | GiveBackInCell():
                self._conductor([each])
            case SpawnInstance() | DeployInstance():
                assert each.instance not in self.guests, f"{each} builds what is there already"
                await super()._deliver(each)
            case DestroyInstance() | UndeployInstance():
                assert each.instance not in self.given_back, f"{each} destroys what goes back"
                self.destroyed.add(each.instance)
                await super()._deliver(each)
            case _:
                await super()._deliver(each)

    def _adopt_guest(self, order: AdoptGuest) -> None:
        attempt = (order.instance, order.attempt)
        if (order.host, attempt) in self.over:
            return
        assert self.guests[order.instance] == order.host
        self.attempts[order.host].add(attempt)
        self.images.setdefault((order.host, attempt), "")
        if not self.has_faults or self.of_adoptions.random() < 0.7:
            self.under_way.append(
                InstanceSpawned(cell="c1", instance=order.instance, attempt=order.attempt, host=order.host)
            )

    def _leave(self, order: LeaveGuest) -> None:
        if self.has_faults and self.of_adoptions.random() < 0.3:
            return  # it will be reminded
        attempt = (order.instance, order.attempt)
        self.attempts[order.host].discard(attempt)
        self.over.add((order.host, attempt))
        self.under_way.append(
            InstanceDestroyed(cell="c1", instance=order.instance, attempt=order.attempt, host=order.host)
        )

    async def check_the_end(self) -> None:
        await super().check_the_end()
        wanted = {each for each in self.guests if each not in self.removed}
        assert not self.destroyed & (wanted | self.given_back)
        assert self.destroyed >= {*self.guests} & self.removed - self.given_back


async def run_world(seed: int) -> AdoptingWorld:
    world = AdoptingWorld(seed)
    await world.begin(instances=12)
    for n in range(150):
        await world.step()
        if n % 3 == 0:
            await world.check()
    await world.settle()
    await world.check_the_end()
    return world


@pytest.mark.parametrize("block", range(0, len(SEEDS), 50))
def test_in_every_world_adopted_instances_are_never_built_and_their_guests_stay_as_long_as_wanted(
    block: int,
) -> None:
    for seed in SEEDS[block : block + 50]:
        try:
            asyncio.run(run_world(seed))
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong


def test_the_worlds_have_every_message_of_adoptions_often_beside_boots_and_rebuilds() -> None:
    seen = Counter[str]()
    for seed in range(20):
        world = asyncio.run(run_world(seed))
        assert world.guests
        seen += world.seen
    names = ("AdoptInCell", "GiveBackInCell", "AdoptGuest", "LeaveGuest", "SpawnInstance", "RespawnInstance")
    assert {name: seen[name] > 20 for name in names} == dict.fromkeys(names, True), seen
