"""Workers of the last release and of this checkout run together on one broker and one database, in every order of an upgrade, while
instances boot, move and end: nothing is lost or doubled, and the books agree.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from operator import not_
from typing import Any
from uuid import UUID

import pytest

from bus.messages.build import DeleteInstance, InstanceState, MoveKind
from bus.messages.moves import MoveInstance
from bus.topology import user_of
from engine.flavors import Flavor, InstanceId, RequestId
from laboratory.ironic import (
    IronicSimSettings,
    WorkDurations,
)
from tests.adversity.real_cloud import METAL, SMALL, RealCloud, a_build, cloud_on, instance_of, with_ironic
from tests.adversity.test_moves_under_kills import LARGE
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.sql_stores import empty_database
from tests.last_release import Release, last_release
from tests.stories.moor.moor_process import moor_says
from tests.waiting import until

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.postgresql,
    pytest.mark.timeout(900),
]

CELL = "c1"
# Of most kinds there are two, so that an old one and a new one share a queue meanwhile.
KINDS = {
    "placement": ("placement-1", "placement-2"),
    "scheduler": ("scheduler-1", "scheduler-2"),
    "conductor": (f"conductor-{CELL}", f"conductor-{CELL}+2"),
    "compute": (f"compute-{CELL}",),
    "ironic": ("ironic-d1", "ironic-d2"),
}
PRESCRIBED = (*KINDS,)
# The order of the docs begun at each kind, so that each is once the only new one and once the only old one; and backwards.
ORDERS = (*[PRESCRIBED[first:] + PRESCRIBED[:first] for first in range(len(KINDS))], PRESCRIBED[::-1])
WORKERS = [worker for workers in KINDS.values() for worker in workers]

HOSTS, NODES = 10, 16
SETTINGS = IronicSimSettings(delays=WorkDurations(deploy_s=0.6, tear_down_s=0.4, clean_s=0.3, power_s=0.1))
# In each stage so many guests and nodes boot. Then each second guest moves and the others end, as do the nodes, in the next stage.
GUESTS, ON_NODES = 12, 4
MOVES: tuple[MoveKind, ...] = ("migrate", "live-migrate", "resize")
HOLDINGS = """
    SELECT c.uuid, c.type, p.uuid
    FROM holders h JOIN consumers c ON c.id = h.consumer_id JOIN providers p ON p.id = h.provider_id
"""


class Work:
    """Orders of clients, and how each instance must be when they have ended."""

    def __init__(self, here: RealCloud) -> None:
        self._here = here
        self._stage = 0
        # The flavor of each instance, and those that must be deleted.
        self.flavors: dict[InstanceId, Flavor] = {}
        self.deleted: set[InstanceId] = set()
        self._moving: dict[InstanceId, MoveInstance] = {}

    async def order(self) -> None:
        """Boot new instances, and move or end those of the stage before."""
        earlier = [id_ for id_ in self.flavors if id_ not in self.deleted and id_ not in self._moving]
        first = 1 + self._stage * (GUESTS + ON_NODES)
        self._stage += 1
        builds = [a_build(number) for number in range(first, first + GUESTS)]
        builds += [
            a_build(number, flavor=METAL, name=f"metal-{number}")
            for number in range(first + GUESTS, first + GUESTS + ON_NODES)
        ]
        self.flavors |= {instance_of(build): build.flavor or SMALL for build in builds}
        guests = [id_ for id_ in earlier if self.flavors[id_] != METAL]
        moves = [a_move(number, id_) for number, id_ in enumerate(guests[::2])]
        self._moving |= {move.instance: move for move in moves}
        self.flavors |= {move.instance: LARGE for move in moves if move.kind == "resize"}
        ending = set(earlier) - self._moving.keys()
        self.deleted |= ending
        await self._here.send([*builds, *moves, *[DeleteInstance(instance=id_) for id_ in sorted(ending)]])

    async def end_on_nodes(self) -> None:
        ending = {id_ for id_, flavor in self.flavors.items() if flavor == METAL} - self.deleted
        self.deleted |= ending
        await self._here.send([DeleteInstance(instance=id_) for id_ in sorted(ending)])

    async def until_done(self) -> None:
        """Wait until each instance is as it was ordered, and exactly the living hold something, each on its host alone."""

        async def not_done() -> list[object]:
            states = {state.id: state for state in await self._here.instances()}
            wrong = [
                (id_, state and (state.state, state.reason, state.move and state.move.outcome))
                for id_ in self.flavors
                if not self._is_done(id_, state := states.get(id_))
            ]
            return [*wrong, *(states.keys() - self.flavors.keys())]

        await until(not_done, "every order is done", not_)
        hosts = {host.name: host.id for host in await self._here.hosts()}

        async def not_theirs() -> Counter[tuple[Any, ...]]:
            living = [each for each in await self._here.instances() if each.state == "active"]
            held = Counter(await self._here.rows(HOLDINGS))
            held.subtract((each.id, "INSTANCE", hosts[each.host]) for each in living)
            return held

        await until(
            not_theirs,
            "each living instance holds its share, and nobody else any",
            lambda counts: not any(counts.values()),
        )

    def _is_done(self, id_: InstanceId, state: InstanceState | None) -> bool:
        if state is None or id_ in self.deleted:
            return state is not None and state.state == "deleted"
        has_moved = id_ not in self._moving or (state.move is not None and state.move.outcome == "confirmed")
        return state.state == "active" and has_moved


def a_move(number: int, instance: InstanceId) -> MoveInstance:
    kind = MOVES[number % len(MOVES)]
    return MoveInstance(
        request_id=RequestId(UUID(int=1_000_000 + instance.int % 1_000_000)),
        instance=instance,
        kind=kind,
        flavor=LARGE if kind == "resize" else None,
        confirm_s=0,
    )


@asynccontextmanager
async def upgraded_database(release: Release, *_workers: str) -> AsyncIterator[str]:
    """A database that the last release made, and this checkout upgraded."""
    async with empty_database("postgresql") as url:
        await release.run("-m", "moor", "db", "upgrade", MOOR_DB_URL=url)
        await moor_says(0, "", "db", "upgrade", MOOR_DB_URL=url)
        yield url


@asynccontextmanager
async def old_cloud(release: Release) -> AsyncIterator[RealCloud]:
    """A cloud whose exchanges, queues and tables the last release made, and this checkout upgraded: now workers are replaced."""
    under_test = await RabbitMQUnderTest.start()
    declare = ("-m", "moor", "broker", "declare", "--ironic")
    await release.run(*declare, MOOR_BUS_URL=under_test.url(), MOOR_CELLS=CELL)
    sizes = {"HOSTS_PER_CELL": str(HOSTS), "SPAWN_MS": "400", "COMPUTES_KEEP": "1"}
    async with cloud_on(
        under_test, CELL, has_nodes=True, database=partial(upgraded_database, release), sizes=sizes
    ) as here:
        yield here


async def until_offered(here: RealCloud) -> None:
    offered = "SELECT count(*) FROM inventories WHERE reserved = 0 AND total = 1"
    await until(lambda: here.rows(offered), "placement offers every node", lambda found: found == [(NODES,)])


async def replace(here: RealCloud, kinds: Sequence[str]) -> None:
    for worker in kinds:
        await here.stop(worker)
        await here.start(worker)


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
async def test_old_and_new_workers_run_together_and_nothing_is_lost_or_doubled(order: Sequence[str]) -> None:
    release = last_release()
    async with old_cloud(release) as here, with_ironic(here, NODES, SETTINGS) as ironic:
        await here.start(*WORKERS, release=release)
        await here.until_up(HOSTS + NODES)
        await until_offered(here)
        work = Work(here)
        await work.order()
        await work.until_done()
        for kind in order:
            ordering = asyncio.create_task(work.order())
            await here.until_in(1, "building", "moving", "deleting")
            await replace(here, KINDS[kind])
            await ordering
            await work.until_done()
            deployed = sorted(node.instance_uuid for node in ironic.nodes.values() if node.instance_uuid)
            assert deployed == sorted(
                str(id_)
                for id_, flavor in work.flavors.items()
                if flavor == METAL and id_ not in work.deleted
            )

        await work.end_on_nodes()
        await work.until_done()
        await until_offered(here)
        await here.until_at_rest(lambda state: work.flavors[state.id])
        await here.nothing_is_buried()
        operator = here.under_test.url(user_of("operator"))
        await moor_says(0, "", "audit", "--settle", "0", MOOR_BUS_URL=operator)
