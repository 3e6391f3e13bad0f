"""Runs a plan: one loop per run, all chance from the plan's seed, and the result as a value."""

import asyncio
import gc
import itertools
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

from msgspec import Struct

from scheduler_worker.hosts import HostRegistry
from scheduler_worker.outbox import Outbox
from tests.planted.replacing import around, replaced
from tests.simulation.cloud import Cloud
from tests.simulation.decision_watch import watched_decisions
from tests.simulation.faults import IN_OUTBOX
from tests.simulation.faulty_broker import watched_channels
from tests.simulation.faulty_database import watched_stores
from tests.simulation.findings import Broken
from tests.simulation.loop import StoppedRun, bounded_cpu, on_bound, run_simulated, until_s
from tests.simulation.plan import Plan
from tests.simulation.process import RUNNING, owned_task
from tests.simulation.settling import choices_left, errors_at_the_end, unsettled
from tests.simulation.workers import SCHEDULER_PACE, installed_plugins

LOOK_S = 2.0
FEED_S = 4.0
COLLECTED_EVERY = 5
ENDS = "a run ends"

_runs = itertools.count(1)


class Outcome(Struct, frozen=True):
    plan: Plan
    broken: Broken | None
    ended_s: float
    seen: Counter[tuple[str, str]]
    timeline: list[tuple[float, str, str, tuple[object, ...]]]
    ends: Counter[str]


def run(plan: Plan, until_s: float | None = None) -> Outcome:
    """Run a plan. Everything follows from the plan, also what comes from the global random generator (pauses before a
    retry).

    The run ends at `until_s`, if given.
    """
    random.seed(plan.seed)
    with _undisturbed(), bounded_cpu():
        try:
            return run_simulated(_simulate(plan, until_s))
        except StoppedRun as stopped:
            broken = Broken(0.0, ENDS, str(stopped))
            return Outcome(plan, broken, plan.faults_end_s, Counter(), [], Counter())


async def _simulate(plan: Plan, until_s: float | None) -> Outcome:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(owned_task)
    # A task of a dead process may fail while it is cancelled; nobody awaits it.
    loop.set_exception_handler(lambda _loop, _context: None)
    cloud = Cloud(plan)
    watched = watched_decisions(cloud.findings.count, cloud.write_oracle.judged, cloud.books.groups.refused)
    looks = replaced(HostRegistry, "look", around(partial(_watched_look, cloud.alarms)))
    outbox = replaced(Outbox, "publish", around(_may_die_in_outbox))
    with watched, watched_stores(cloud.now), watched_channels(), looks, outbox, installed_plugins():
        return await _run_cloud(cloud, until_s)


def _watched_look(alarms: set[str], real: Any, registry: Any) -> None:
    """Note the names of hosts about which a scheduler has raised an alarm."""
    real(registry)
    (clashes,) = registry.readings
    alarms.update(name for (name,) in clashes.by_labels)


class _Dying:
    """A publisher of messages whose rows are committed: the process may die before it sends them."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher

    async def send_all(self, *sent: Any) -> None:
        if (process := RUNNING.get()) is not None:
            await process.point(IN_OUTBOX)
        await self._publisher.send_all(*sent)


async def _may_die_in_outbox(real: Any, self: Any, told: Any) -> None:
    dying = copy(self)
    vars(dying)["_publisher"] = _Dying(self._publisher)
    await real(dying, told)


async def _run_cloud(cloud: Cloud, end_s: float | None) -> Outcome:
    loop = asyncio.get_running_loop()
    on_bound(lambda why: cloud.findings.breaks(ENDS, why))
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
    await until_s(cloud.plan.faults_end_s)
    cloud.stop_faults()
    cloud.findings.log("SEED", "faults stop")
    connection = cloud.memory.connect("")
    loop = asyncio.get_running_loop()
    latest = cloud.plan.faults_end_s + cloud.plan.settle_s_max
    settled_at = -1
    while (left := await unsettled(cloud, connection)) or settled_at != cloud.books.commits:
        if loop.time() > latest + FEED_S:
            cloud.findings.breaks("everything settles", "; ".join(left[:5]) or "claims still change")
            return
        # The feed brings the last changes to the schedulers' pictures; if it has lost any, its positions show a gap.
        # Meanwhile a host may count as down, and be evacuated, even to the end: then all settles once more.
        settled_at = -1 if left else cloud.books.commits
        if left:
            await cloud.mend_nodes()
        await asyncio.sleep(LOOK_S if left else FEED_S)
    if wrong := await errors_at_the_end(cloud, connection):
        cloud.findings.breaks("everything settles", "; ".join(wrong[:5]))
    # If the answer to a claim comes after a scheduler has read everything anew, it counts that choice until the next
    # reading.
    latest = loop.time() + 2 * SCHEDULER_PACE.verify_every_s
    while (left := choices_left(cloud)) and loop.time() < latest:
        await asyncio.sleep(LOOK_S)
    if left:
        cloud.findings.breaks("everything settles", "; ".join(left[:5]))
    if wrong := await cloud.audit():
        cloud.findings.breaks("an audit at rest finds nothing", "; ".join(wrong[:5]))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A run without logs, and without garbage collection, whose timing does not follow from the seed. The garbage is
    collected after every few runs instead.
    """
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        if next(_runs) % COLLECTED_EVERY == 0:
            gc.collect()
        gc.enable()
