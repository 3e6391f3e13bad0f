"""The public client on `moor up`: from a program with asyncio and from one without; and `moor up` is killed in the middle."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from moor.client import Client, Flavor, FlavorChange, NotAllowed, SyncClient
from tests.stories.moor.moor_process import Process, moor, started, started_anew

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

T = TypeVar("T")
SMALL = Flavor(name="small", vcpus=1, ram_mb=512, root_gb=1)


def url_of(home: Path) -> str:
    return f"unix://{home}/moorage/bus.sock"


@asynccontextmanager
async def up(home: Path, *arguments: str) -> AsyncIterator[Process]:
    async with started_anew("up", *arguments, XDG_STATE_HOME=str(home)) as process:
        await process.until_printed("ready")
        yield process


async def in_a_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def test_a_program_without_asyncio_boots_moves_lists_and_deletes(home: Path) -> None:
    def work() -> None:
        with SyncClient(url_of(home)) as moorage:
            request = moorage.boot(SMALL, name="web")
            assert [each.state for each in request.follow()][-1] == "active"
            (instance,) = request.until_done()
            (moved,) = moorage.migrate(instance.id).until_done()
            assert (moved.state, moved.host != instance.host) == ("moved", True)
            (back,) = moorage.revert(instance.id).until_done()
            assert (back.state, back.host) == ("active", instance.host)
            (resized,) = moorage.resize(instance.id, FlavorChange(vcpus=2), confirm_s=0).until_done()
            assert resized.state == "active"
            (found,) = moorage.look(instance.id).details
            assert (size := found.size) is not None
            assert size.amounts == {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 1}
            shelved = moorage.shelve(instance.id).until_done()
            unshelved = moorage.unshelve(instance.id).until_done()
            assert [each.state for each in (*shelved, *unshelved)] == ["shelved", "active"]
            assert moorage.rebuild(instance.id, "http://images/debian").until_done()[0].state == "active"
            assert [each.what for each in moorage.history(instance.id)] == [
                *("boot", "migrate", "resize", "shelve", "unshelve", "rebuild")
            ]
            assert moorage.delete(instance.id).until_done()[0].state == "deleted"
            assert [each.id for each in moorage.list_instances(state="deleted")] == [instance.id]
        with pytest.raises(RuntimeError, match="the client is not open"):
            moorage.boot(SMALL)

    async with up(home, "--cells", "harbour", "--hosts", "4"):
        await in_a_thread(work)


async def test_an_operator_empties_hosts_and_others_may_not(home: Path) -> None:
    async with started("up", "--cells", "harbour", "--hosts", "4", XDG_STATE_HOME=str(home)) as process:
        await process.until_printed("ready")
        async with Client(url_of(home)) as moorage:
            request = await moorage.boot(SMALL, count=8)
            await request.until_done()
            with pytest.raises(NotAllowed, match=r"host\.set"):
                await moorage.drain("harbour-host-00001")
        async with Client(url_of(home), as_operator=True) as operator:
            first, second = sorted({each.host for each in request.states})[:2]
            drained = await operator.drain(first, reason="disk")
            assert (await operator.show_host(first)).setting.reason == "disk"
            await operator.set_host(second, "down")
            evacuated = await operator.evacuate_host(second)

            assert (drained.stayed, evacuated.stayed) == ((), ())
            assert drained.moved
            hosts = {each.host async for each in operator.list_instances(state="active")}
            assert hosts.isdisjoint({first, second})
            assert [each.name async for each in operator.list_hosts(mode="down")] == [second]
            assert {each.cell for each in await operator.list_cells()} == {"harbour"}
        audited = await moor("audit", "--settle", "0", XDG_STATE_HOME=str(home))
        assert audited.code == 0, audited.out
