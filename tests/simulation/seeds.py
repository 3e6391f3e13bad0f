"""Runs plans: one loop each, everything drawn from the plan's seed, and what was found as a value."""

import asyncio
import gc
import itertools
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from tests.simulation.cloud import Cloud
from tests.simulation.findings import Broken
from tests.simulation.loop import live, until_s
from tests.simulation.pairs import watched_pairs
from tests.simulation.plan import Plan
from tests.simulation.process import owned_task
from tests.simulation.settling import choices_left, unsettled, wrong_at_the_end
from tests.simulation.workers import SCHEDULER

LOOK_S = 2.0
FEED_S = 4.0
COLLECTED_EVERY = 5

_runs = itertools.count(1)


class Outcome(Struct, frozen=True):
    plan: Plan
    broken: Broken | None
    ended_s: float
    seen: Counter[tuple[str, str]]
    timeline: list[tuple[float, str, str, tuple[object, ...]]]
    ends: Counter[str]


def run(plan: Plan, until_s: float | None = None) -> Outcome:
    """Whatever happens follows from the plan. Chance that is nobody's own (pauses before a retry) is the plan's, too.

    What happens after `until_s` is not waited for.
    """
    random.seed(plan.seed)
    with _undisturbed():
        return live(_day(plan, until_s))


async def _day(plan: Plan, until_s: float | None) -> Outcome:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(owned_task)
    # A task of a process that died may fail on its way out, and nobody is left to look at it.
    loop.set_exception_handler(lambda _loop, _context: None)
    cloud = Cloud(plan)
    with watched_pairs(cloud.findings.see, cloud.register.judged):
        return await _live_through(cloud, until_s)


async def _live_through(cloud: Cloud, end_s: float | None) -> Outcome:
    loop = asyncio.get_running_loop()
    await cloud.open()
    playing = loop.create_task(_play(cloud))
    over = loop.create_task(cloud.findings.is_over.wait())
    await asyncio.wait((playing, over), timeout=end_s, return_when=asyncio.FIRST_COMPLETED)
    if playing.done():
        playing.result()
    ended_s = loop.time()
    playing.cancel()
    over.cancel()
    cloud.close()
    await asyncio.sleep(1)
    return Outcome(
        cloud.plan,
        cloud.findings.broken,
        ended_s,
        cloud.findings.seen,
        cloud.findings.timeline,
        Counter(row.told.state for row in cloud.requests.rows.values()),
    )


async def _play(cloud: Cloud) -> None:
    await until_s(cloud.plan.calm_s)
    cloud.calm_down()
    cloud.findings.tell("SEED", "nothing goes wrong any more")
    connection = cloud.memory.connect("")
    loop = asyncio.get_running_loop()
    latest = cloud.plan.calm_s + cloud.plan.patience_s
    while left := await unsettled(cloud, connection):
        if loop.time() > latest:
            cloud.findings.breaks("everything settles", "; ".join(left[:5]))
            return
        await asyncio.sleep(LOOK_S)
    # The last changes are on their way to the pictures, by a feed that has jumped if anything in it was lost.
    await asyncio.sleep(FEED_S)
    if wrong := await wrong_at_the_end(cloud, connection):
        cloud.findings.breaks("everything settles", "; ".join(wrong[:5]))
    # A choice whose answer comes after the reading that made up for a gap is counted until the next reading.
    latest = loop.time() + 2 * SCHEDULER.verify_every_s
    while (left := choices_left(cloud)) and loop.time() < latest:
        await asyncio.sleep(LOOK_S)
    if left:
        cloud.findings.breaks("everything settles", "; ".join(left[:5]))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No log, and no garbage collector, whose moments are not the seed's; now and then there is time for it in between."""
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        if next(_runs) % COLLECTED_EVERY == 0:
            gc.collect()
        gc.enable()
