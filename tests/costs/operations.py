"""Runs each operation in this process, and returns what one of it costs."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import parse_qsl

from msgspec import structs

from bus.messages.build import BuildInstance, InstanceActive
from bus.messages.placement import ClaimResources, ReportInventory
from engine.candidates.search import find_candidates
from engine.choosing.choosing import choose
from engine.flavors import Flavor, instance_id_of
from moor.client.bus_client import hearing
from moor.client.requests import new_request_ids
from moor.clouds.cloud import CloudPlan
from moor.clouds.temporary_cloud import TemporaryCloud, temporary_cloud
from placement_worker.api.queries import candidates_query
from tests.costs.counting import Counts, calibration_s, counting
from tools.benchmarks.books import SqliteBooks, asked, handled, handlers_on
from tools.benchmarks.clouds import hosts_alone, index_of
from tools.benchmarks.messages import HOST_IDS, claims, reports
from tools.benchmarks.section_choosing import PLUGINS, SALT, equal_specs, picture_of

# One batch of an operation, and how many operations it has.
Batch = Callable[[], Awaitable[None]]
Opened = Callable[[], AbstractAsyncContextManager[Batch]]
# By what is counted. `cpu` is CPU time, as a multiple of a calibration's.
Costs = dict[str, float]

TRIES = 8
HOSTS, CELL = 40, "c1"
CLOUD_HOSTS = 1_000
FLAVOR = Flavor(name="small", vcpus=1, ram_mb=512, root_gb=1)
BATCH = 100
# With a clear message a batch that does not end is found sooner than by the limit of a test.
BOOTED_S_MAX = 60
# Types of messages that are not counted: a cloud sends them while nothing is asked of it, too, or once for many changes.
ALWAYS = ("host.beat", "host.state", "conductor.beat", "providers.changed")


@asynccontextmanager
async def boots() -> AsyncIterator[Batch]:
    async with temporary_cloud(CloudPlan(cells={CELL: HOSTS}), role="costs") as cloud:
        await cloud.until_ready()

        async def batch() -> None:
            await _boot(cloud)

        yield batch


async def _boot(cloud: TemporaryCloud) -> None:
    requests = new_request_ids(BATCH)
    left = {instance_id_of(request, 0) for request in requests}
    async with asyncio.timeout(BOOTED_S_MAX), hearing(cloud.client, "instance.active.#") as heard:
        for request in requests:
            cloud.client.publisher.send(BuildInstance(request_id=request, flavor=FLAVOR))
        async for some in heard:
            left -= {each.message.instance.id for each in some if isinstance(each.message, InstanceActive)}
            if not left:
                return


@asynccontextmanager
async def placement_claims() -> AsyncIterator[Batch]:
    async with SqliteBooks().opened() as books:
        handler = handlers_on(books.store)[ClaimResources]
        orders = [asked(claims(BATCH, HOST_IDS)) for _ in range(2 * TRIES)]

        async def batch() -> None:
            await handled(books.store, handler, orders.pop())

        yield batch


@asynccontextmanager
async def inventory_reports() -> AsyncIterator[Batch]:
    async with SqliteBooks().opened() as books:
        handler = handlers_on(books.store)[ReportInventory]
        number = 0

        async def batch() -> None:
            nonlocal number
            number += 1
            await handled(books.store, handler, asked([_changed(each, number) for each in reports()[:BATCH]]))

        yield batch


def _changed(report: ReportInventory, number: int) -> ReportInventory:
    (host,) = report.providers
    inventories = {
        name: structs.replace(each, reserved=number) for name, each in (host.inventories or {}).items()
    }
    return structs.replace(report, providers=(structs.replace(host, inventories=inventories),))


@asynccontextmanager
async def candidate_searches() -> AsyncIterator[Batch]:
    cloud = hosts_alone(CLOUD_HOSTS)
    index = index_of(cloud)
    query = structs.replace(candidates_query(parse_qsl(cloud.query), (1, 39)), limit=50)

    async def batch() -> None:
        for _ in range(BATCH):
            assert len(find_candidates(index, query)) == 50

    yield batch


@asynccontextmanager
async def choices() -> AsyncIterator[Batch]:
    picture = picture_of(hosts_alone(CLOUD_HOSTS))
    specs = equal_specs()[:BATCH]

    async def batch() -> None:
        assert len(choose(picture, specs, PLUGINS, salt=SALT)) == BATCH

    yield batch


OPERATIONS: dict[str, Opened] = {
    "boot": boots,
    "claim": placement_claims,
    "report": inventory_reports,
    "candidate search": candidate_searches,
    "choice": choices,
}
START = "start of moor list"


async def costs_of(operation: str) -> Costs:
    if operation == START:
        return await asyncio.to_thread(_costs_of_start)
    opened = OPERATIONS[operation]
    with counting() as counts:
        async with opened() as batch:
            # What only the first does is not an operation's.
            await batch()
            counts.reset()
            await batch()
            costs = _counted(counts)
    async with opened() as batch:
        await batch()
        costs["cpu"] = await _cpu(batch)
    return costs


def _counted(counts: Counts) -> Costs:
    messages = sum(count for name, count in counts.messages.items() if name not in ALWAYS)
    counted = {
        "messages": messages,
        "rows": counts.rows,
        "transactions": counts.statements["COMMIT"],
        "calls": counts.calls,
    }
    return {name: count / BATCH for name, count in counted.items() if count}


async def _cpu(batch: Batch) -> float:
    """CPU time of an operation in thousandths of a calibration. The least of several tries: others on the machine only add."""
    spent, calibrations = [], []
    for _ in range(TRIES):
        calibrations.append(calibration_s())
        began = time.process_time()
        await batch()
        spent.append(time.process_time() - began)
    return min(spent) / min(calibrations) / BATCH * 1000


def _costs_of_start() -> Costs:
    """The costs of a start of `moor list --help`: the modules that Python imports, and its CPU time."""
    spent, calibrations, modules = [], [], 0
    command = (sys.executable, "-X", "importtime", "-m", "moor", "list", "--help")
    for _ in range(TRIES // 2):
        calibrations.append(calibration_s())
        before = os.times()
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        after = os.times()
        spent.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
        modules = ran.stderr.count("import time:")
    return {"modules": float(modules), "cpu": min(spent) / min(calibrations)}
