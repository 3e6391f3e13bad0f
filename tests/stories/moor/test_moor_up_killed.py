"""`moor up` is killed again and again in a busy time of boots, moves and deletes, and started on the same data: every request
ends, and the books agree.

`MOOR_UP_KILLS=60` kills it as often as a minute has seconds.
"""

import asyncio
import os
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from bus.addresses import broker_at
from bus.messages.build import (
    AskInstances,
    BuildInstance,
    DeleteInstance,
    InstancesFound,
    InstanceState,
    MoveKind,
)
from bus.messages.moves import MoveInstance
from bus.settings import BusSettings
from bus.workers.station import Station
from engine.flavors import Flavor, InstanceId, RequestId, instance_id_of
from kit.process import run_until
from tests.stories.moor.moor_process import Process, moor, moor_json, started_anew
from tests.stories.moor.test_moor_up import MISFORTUNES, problems_in_the_books
from tests.varied import varied

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("MOOR_UP_KILLS", "4"))
# So many lives are under way at any time; so many end between two kills.
AT_ONCE, ENDED_BETWEEN = 30, 6
KINDS: tuple[MoveKind, ...] = ("migrate", "live-migrate", "resize")
SMALL = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1)
LARGE = Flavor(name="large", vcpus=2, ram_mb=128, root_gb=1)


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


class Lives:
    """Instances that are booted, moved and partly deleted, by a client that stays while the cloud is killed."""

    def __init__(self, client: Station) -> None:
        self._client = client
        self._asked = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self.ended: Counter[str] = Counter()

    async def go_on(self, until_ended: int) -> None:
        while self.ended.total() < until_ended:
            while len(self._under_way) < AT_ONCE:
                self._asked += 1
                self._under_way.add(asyncio.create_task(self._live(self._asked)))
            await self._some_end()

    async def end(self) -> None:
        while self._under_way:
            await self._some_end()
        assert self.ended.total() == self._asked

    async def _some_end(self) -> None:
        done, self._under_way = await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            await each

    async def _live(self, number: int) -> None:
        build = BuildInstance(
            request_id=RequestId(UUID(int=number)), flavor=SMALL, name=f"vm-{number}", deadline_s=300
        )
        assert build.request_id is not None
        instance = instance_id_of(build.request_id, 0)
        await self._client.send(build)
        state = await self._until(instance, lambda each: each.state in ("active", "error"))
        if state.state == "active" and number % 4:
            kind = KINDS[number % 3]
            move = MoveInstance(
                request_id=RequestId(UUID(int=1_000_000 + number)),
                instance=instance,
                kind=kind,
                flavor=LARGE if kind == "resize" else None,
                confirm_s=0,
            )
            await self._client.ask(move)
            state = await self._until(
                instance,
                lambda each: each.state in ("active", "error") and bool(each.move and each.move.outcome),
            )
        if number % 5 == 0:
            await self._client.send(DeleteInstance(instance=instance))
            state = await self._until(instance, lambda each: each.state == "deleted")
        self.ended[state.state] += 1

    async def _until(self, instance: InstanceId, condition: Callable[[InstanceState], bool]) -> InstanceState:
        while True:
            found = await self._client.ask(AskInstances(instances=(instance,)))
            assert isinstance(found, InstancesFound), found
            if found.instances and condition(found.instances[0]):
                return found.instances[0]
            await asyncio.sleep(0.2)


@asynccontextmanager
async def a_client(home: Path) -> AsyncIterator[Station]:
    url = f"unix://moor-operator@{home}/moorage/bus.sock"
    patient = varied(BusSettings(), answer_timeout_ms=600_000, CONNECT_DELAY_MS_MAX=500)
    client = Station(broker_at(url), "client", settings=patient, asks=True)
    told = asyncio.Event()
    running = asyncio.create_task(run_until(told, (client,), drain_s_max=5))
    try:
        yield client
    finally:
        told.set()
        await running
        await client.close()


async def test_moor_up_is_killed_in_a_busy_time_of_boots_and_moves_and_all_of_them_end(home: Path) -> None:
    faults = home / "faults.toml"
    faults.write_text(MISFORTUNES)
    arguments = ("--cells", "harbour,island", "--hosts", "10", "--faults", str(faults))
    at_home = {"XDG_STATE_HOME": str(home)}

    @asynccontextmanager
    async def up() -> AsyncIterator[Process]:
        async with started_anew("up", *arguments, **at_home) as process:
            await process.until_printed("ready")
            yield process

    async with a_client(home) as client:
        lives = Lives(client)
        for kill in range(KILLS):
            async with up() as victim:
                await lives.go_on((kill + 1) * ENDED_BETWEEN)
                victim.send_signal(signal.SIGKILL)
                await victim.ended()
        async with up() as last:
            await lives.end()
            listed = await moor_json("list", **at_home)
            assert Counter(each["state"] for each in listed) == lives.ended
            audited = await moor("audit", "--settle", "0", **at_home)
            assert (audited.code, "no faults" in audited.out) == (0, True), audited.out
            dead = await moor("dead", "list", **at_home)
            assert "no dead letters" in dead.out, dead.out
            last.send_signal(signal.SIGTERM)
            assert (await last.ended()).code == 0
    assert not await problems_in_the_books(home)
