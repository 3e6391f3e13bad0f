"""A balance on real servers, beside boots: it gains what its plan promised, and no guest moves twice.

`BALANCE_HOSTS=113 BALANCE_GUESTS=15769 BALANCE_VCPUS=160 BALANCE_MOVES=1000 BALANCE_RATE=200` makes it as large as the one that docs/benchmarks.md
tells of.
"""

import asyncio
import os
import time
from collections import Counter
from uuid import uuid4

import msgspec
import pytest

from bus.message import Message
from bus.messages.hosts import HostSet, SetHost
from bus.messages.keeping import (
    AskCampaignPlan,
    AskCampaigns,
    CampaignId,
    CampaignPlanned,
    CampaignsFound,
    CampaignWork,
    Movement,
    StartCampaign,
)
from engine.hosts import HostMode, host_in_cell
from kit.parts import batches_of
from tests.adversity.real_cloud import SMALL, RealCloud, a_build, real_cloud
from tests.adversity.test_campaigns_under_kills import boots
from tests.waiting import until

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(1200)]


def size(name: str, usual: int) -> int:
    return int(os.environ.get(f"BALANCE_{name}", usual))


HOSTS, GUESTS, MOVES = size("HOSTS", 12), size("GUESTS", 192), size("MOVES", 120)
VCPUS, RATE = size("VCPUS", 16), size("RATE", 4)
WORKERS = (
    *("placement-1", "scheduler-1", "scheduler-2", "keeper-1", "keeper-2"),
    *("conductor-c1", "compute-c1"),
)
WORK = CampaignWork(
    kind="balance", goal="even", moves_max=MOVES, guests_at_once=max(MOVES // 10, 5), failures_max=MOVES
)
# The least part of the promised gain.
GAINED_LEAST = 0.9
LONG_S = 900.0


async def answer(here: RealCloud, question: Message, kind: type[Message]) -> Message:
    found = await here.client.ask(question)
    assert isinstance(found, kind), found
    return found


async def set_half(here: RealCloud, mode: HostMode) -> None:
    for host in await here.hosts():
        if int(host.name.rpartition("-")[2]) % 2:
            await answer(here, SetHost(host=host_in_cell(host.cell, host.name), mode=mode), HostSet)


async def planned(here: RealCloud) -> CampaignPlanned:
    found = await answer(here, AskCampaignPlan(work=WORK), CampaignPlanned)
    assert isinstance(found, CampaignPlanned)
    return found


async def campaign(here: RealCloud) -> CampaignsFound:
    found = await answer(here, AskCampaigns(campaign="even", ended=True), CampaignsFound)
    assert isinstance(found, CampaignsFound)
    return found


async def test_a_balance_gains_what_its_plan_promised_beside_boots() -> None:
    async with real_cloud(
        "c1",
        HOSTS_PER_CELL=str(HOSTS),
        SPAWN_MS="20",
        INSTANCES_PER_HOST_MAX="0",
        VCPUS_PER_HOST=str(VCPUS),
    ) as here:
        await here.start(*WORKERS)
        await here.until_up(HOSTS)
        # All guests come to one half of the hosts.
        await set_half(here, "draining")
        for some in batches_of([a_build(number) for number in range(1, GUESTS + 1)], 500):
            await here.send(some)
        await here.until_in(GUESTS, "active")
        await set_half(here, "up")
        await until(lambda: planned(here), "there is something to do", lambda found: found.fit > 0)
        began_s = time.monotonic()
        plan = await planned(here)
        took_s = time.monotonic() - began_s
        assert plan.before is not None

        booting = asyncio.create_task(boots(here, GUESTS + 1, RATE)) if RATE else None
        order = StartCampaign(id=CampaignId(uuid4()), name="even", work=WORK)
        await answer(here, order, CampaignsFound)
        found = await until(
            lambda: campaign(here),
            "it has ended",
            lambda found: found.campaigns[0].reached is not None,
            within_s=LONG_S,
        )
        if booting is not None:
            booting.cancel()
        (ended,) = found.campaigns
        assert ended.before is not None
        assert ended.promised is not None
        assert ended.reached is not None
        was, promised, reached = (each.spread for each in (ended.before, ended.promised, ended.reached))
        print(
            f"{HOSTS} hosts, {GUESTS} guests: planned in {took_s:.1f} s; {ended.movements}; spread {was:.3f}, "
            f"promised {promised:.3f}, reached {reached:.3f}"
        )
        assert was - reached >= GAINED_LEAST * (was - promised)
        rows = await here.rows("SELECT body FROM keeper_movements WHERE life = 'done'")
        moved = Counter(msgspec.json.decode(body, type=Movement).instance for (body,) in rows)
        assert moved
        assert max(moved.values()) == 1
        await until(
            here.instances, "all rest", lambda found: all(each.state in ("active", "error") for each in found)
        )
        await here.until_at_rest(lambda _: SMALL)
        assert await here.audited() == ()
