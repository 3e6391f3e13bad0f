"""Keepers and schedulers are killed and stopped in the middle of a campaign on real servers, beside boots, while moves fail.

All goes on where it stood, nothing is granted twice, and each budget holds at every commit. That is judged by a log that a trigger of the
database writes, and by code that is not the keeper's.

`CAMPAIGN_HOSTS=2000 CAMPAIGN_GUESTS=20000 CAMPAIGN_DRAINED=200 CAMPAIGN_KILLS=30 CAMPAIGN_KILL_EVERY_MS=1200 CAMPAIGN_RATE=200
CAMPAIGN_ALONE_S=20` makes it as large as the one that docs/benchmarks.md tells of.
"""

import asyncio
import itertools
import os
import random
import signal
import time
from bisect import bisect
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from bus.messages.keeping import (
    AskCampaigns,
    BudgetsFound,
    CampaignId,
    CampaignsFound,
    CampaignWork,
    MoveBudget,
    Movement,
    SetBudget,
    StartCampaign,
)
from engine.hosts import HostState
from kit.parts import batches_of
from tests.adversity.real_cloud import SMALL, RealCloud, a_build, real_cloud
from tests.contracts.sql_stores import a_session
from tests.ledger_checker import breaches
from tests.waiting import until

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(1200)]


def size(name: str, usual: str) -> int:
    return int(os.environ.get(f"CAMPAIGN_{name}", usual))


HOSTS, GUESTS = size("HOSTS", "40"), size("GUESTS", "160")
DRAINED, KILLS = size("DRAINED", "8"), size("KILLS", "6")
# Ten racks, each with hosts of both cells.
CELLS = ("c1", "c2")
RACK = max(HOSTS // len(CELLS) // 10, 1)
RATE, ALONE_S = size("RATE", "20"), size("ALONE_S", "0")
KILL_EVERY_S = size("KILL_EVERY_MS", "350") / 1000
BOOTS_EVERY_S = 0.25
KEEPERS, SCHEDULERS = ("keeper-1", "keeper-2"), ("scheduler-1", "scheduler-2")
WORKERS = (
    "placement-1",
    *SCHEDULERS,
    *KEEPERS,
    *(f"{kind}-{cell}" for cell in CELLS for kind in ("conductor", "compute")),
)
WIDE = max(DRAINED // 5, 12)
LONG_S = 900.0
BUDGETS = (
    MoveBudget(name="all", scope="cloud", at_once=WIDE),
    MoveBudget(name="racks out", scope="domain", level=1, side="out", at_once=max(WIDE // 3, 2)),
    MoveBudget(name="hosts in", scope="host", side="in", at_once=2),
    MoveBudget(name="cells", scope="cell", at_once=WIDE * 2 // 3),
    MoveBudget(name="an hour", scope="cloud", per_hour=GUESTS),
)
# Each state that a movement's row ever had, in the order of its writes.
LOG = """
    CREATE TABLE ledger_log (number bigserial PRIMARY KEY, body bytea NOT NULL);
    CREATE FUNCTION log_movement() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
        $$ BEGIN INSERT INTO ledger_log (body) VALUES (NEW.body); RETURN NULL; END $$;
    CREATE TRIGGER log_movement AFTER INSERT OR UPDATE ON keeper_movements FOR EACH ROW EXECUTE FUNCTION log_movement();
"""


@asynccontextmanager
async def booted(moves_failing: str = "0") -> AsyncIterator[RealCloud]:
    """A cloud in ten racks, with its guests and budgets."""
    per_cell = HOSTS // len(CELLS)
    async with real_cloud(
        *CELLS,
        HOSTS_PER_CELL=str(per_cell),
        PLACE=f"rack{{{RACK}}}",
        SPAWN_MS="20",
        MOVES_FAILING=moves_failing,
        # Boots go on for as long as the campaign does.
        INSTANCES_PER_HOST_MAX="0",
        VCPUS_PER_HOST="100",
    ) as here:
        async with a_session(here.database_url) as admin:
            await admin.execute(LOG)
        await here.start(*WORKERS)
        await here.until_up(HOSTS)
        builds = [a_build(number) for number in range(1, GUESTS + 1)]
        for some in batches_of(builds, 500):
            await here.send(some)
        await here.until_in(GUESTS, "active", "error")
        for budget in BUDGETS:
            answer = await here.client.ask(SetBudget(budget=budget))
            assert isinstance(answer, BudgetsFound), answer
        yield here


async def campaign(here: RealCloud) -> CampaignsFound:
    answer = await here.client.ask(AskCampaigns(campaign="spring", limit=500))
    assert isinstance(answer, CampaignsFound), answer
    return answer


async def begun(here: RealCloud) -> Sequence[str]:
    """A campaign over some hosts of each rack and cell. Returns their names."""
    hosts = sorted(await here.hosts(), key=_turn)[:DRAINED]
    names = tuple(each.name for each in hosts)
    work = CampaignWork(
        hosts=names, at_once=max(DRAINED // 4, 2), guests_at_once=WIDE, failures_max=DRAINED + 1
    )
    order = StartCampaign(id=CampaignId(uuid4()), name="spring", work=work)
    answer = await here.client.ask(order)
    assert isinstance(answer, CampaignsFound), answer
    return names


def _turn(host: HostState) -> tuple[int, int, str]:
    number = int(host.name.rpartition("-")[2])
    return number % RACK, number, host.cell


async def boots(here: RealCloud, first: int, rate: int = RATE) -> None:
    """So many instances boot in a second until this is cancelled."""
    some, due_s = max(round(rate * BOOTS_EVERY_S), 1), time.monotonic()
    for number in itertools.count(first, some):
        await here.send([a_build(each) for each in range(number, number + some)])
        due_s += BOOTS_EVERY_S
        await asyncio.sleep(max(due_s - time.monotonic(), 0))


async def latencies(here: RealCloud, *moments: datetime) -> list[list[float]]:
    """How many seconds boots took that were asked for before the first of these moments, between two, and after the last one; without
    the guests from before.
    """
    took: list[list[float]] = [[] for _ in range(len(moments) + 1)]
    for row in await here.instance_rows():
        is_later = row.told.request_id.int > GUESTS
        if is_later and row.told.state == "active" and row.told.move is None and row.told.changed_at:
            span = bisect(moments, row.issued_at)
            took[span].append((row.told.changed_at - row.issued_at).total_seconds())
    return [sorted(each) for each in took]


async def judged(here: RealCloud) -> None:
    """Replay the log: after each write, is each budget held, and has each try its own grant?"""
    rows = await here.rows("SELECT body FROM ledger_log ORDER BY number")
    now: dict[object, Movement] = {}
    recent: list[Movement] = []
    ordered: dict[object, object] = {}
    assert rows
    for (body,) in rows:
        each = msgspec.json.decode(body, type=Movement)
        before = now.get(each.id)
        now[each.id] = each
        if each.life != "granted" or (before is not None and before.life == "granted"):
            continue
        assert before is None or before.life == "planned", f"granted while it was {before.life}"
        assert ordered.setdefault(each.request_id, each.instance) == each.instance
        assert ordered.get((each.instance, each.request_id)) is None, "granted twice under one request"
        ordered[each.instance, each.request_id] = True
        recent = [one for one in (*recent, each) if at(one) > at(each) - timedelta(hours=1)]
        going = [one for one in now.values() if one.life in ("granted", "moving")]
        assert breaches(BUDGETS, going, recent) == []


def at(movement: Movement) -> datetime:
    assert movement.granted_at is not None
    return movement.granted_at


async def over(here: RealCloud, names: Sequence[str]) -> None:
    """The campaign has ended, the hosts are empty or say why not, and the books agree."""
    ended = await until(
        lambda: campaign(here), "the campaign has ended", lambda found: found.campaigns[0].ended_at
    )
    assert ended.campaigns[0].life == "done"
    assert ended.campaigns[0].movements.get("planned", 0) == 0
    await judged(here)
    states = await here.instances()
    left = {each.host for each in states if each.state == "active" and each.host in names}
    failed = {each.host for each in ended.hosts if each.stage == "failed"}
    assert left == failed, "only hosts that failed have guests, which were told of"
    await until(
        here.instances, "all rest", lambda found: all(each.state in ("active", "error") for each in found)
    )
    await here.until_at_rest(lambda _: SMALL)
    assert await here.audited() == ()
    await here.nothing_is_buried()


async def test_keepers_and_schedulers_are_killed_in_the_middle_of_a_campaign() -> None:
    chance = random.Random(7)
    async with booted("0.05") as here:
        booting = asyncio.create_task(boots(here, GUESTS + 1))
        await asyncio.sleep(ALONE_S)
        names, began = await begun(here), datetime.now(UTC)
        for number in range(KILLS):
            await asyncio.sleep(KILL_EVERY_S * chance.uniform(0.3, 1.7))
            await here.kill_and_start_again((KEEPERS, SCHEDULERS)[number % 2][number // 2 % 2])
        killed = datetime.now(UTC)
        ended = await until(
            lambda: campaign(here), "it has ended", lambda found: found.campaigns[0].ended_at, within_s=LONG_S
        )
        booting.cancel()
        await over(here, names)
        print(
            f"{DRAINED} of {HOSTS} hosts, {KILLS} kills: {took_of(ended)} s; {ended.campaigns[0].movements}"
        )
        times = await latencies(here, began, killed, told_end(ended))
        for what, each in zip(
            ("before it", "while workers are killed", "beside it", "after it"), times, strict=True
        ):
            if each:
                p50, p99 = [each[len(each) * share // 1000] for share in (500, 990)]
                print(f"{len(each)} boots {what}: p50 {p50:.2f} s, p99 {p99:.2f} s")


def took_of(found: CampaignsFound) -> int:
    (told,) = found.campaigns
    assert told.asked_at is not None
    return round((told_end(found) - told.asked_at).total_seconds())


def told_end(found: CampaignsFound) -> datetime:
    ended_at = found.campaigns[0].ended_at
    assert ended_at is not None
    return ended_at


async def test_a_keeper_that_stood_still_for_longer_than_its_lease_grants_nothing_twice() -> None:
    async with booted() as here:
        names = await begun(here)
        for number in range(4):
            stopped = KEEPERS[number % 2]
            here.signal(stopped, signal.SIGSTOP)
            # The other one goes on after the lease.
            await asyncio.sleep(4.0)
            here.signal(stopped, signal.SIGCONT)
            await asyncio.sleep(0.5)
        await over(here, names)
