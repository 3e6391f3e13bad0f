"""A compute loses something that it needs, under a whole cloud: the folder of the guests hangs or is stale, a libvirtd or the compute is killed.

The host is down meanwhile, and the compute says why; its guests that end are told when it is back, orders are obeyed then, and nothing
is lost.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from bus.messages.build import InstanceState
from bus.settings import BusSettings
from moor.overview.gathering import CloudView, troubles_of
from tests.libvirt.libvirt_cloud import SETTINGS, domains, virsh
from tests.libvirt.test_libvirt_kill_sweep import BOTH_DISKS, Libvirtds, Sweep, sweeping
from tests.servers.libvirtd import PrivateLibvirtd

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

# A host that is not heard is down soon, and one that is not seen soon is not heard.
HURRIED = structs.replace(SETTINGS, bus=BusSettings(host_down_s=5.0))
AWAY_S = 2.0
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def libvirtds() -> Iterator[Libvirtds]:
    with PrivateLibvirtd() as first, PrivateLibvirtd() as second:
        yield {"h1": first, "h2": second}


async def until_up(sweep: Sweep, **hosts: bool) -> None:
    """Wait until these hosts are up, or are not."""
    async with asyncio.timeout(PATIENCE_S):
        while {each.name: each.up async for each in sweep.cloud.client.list_hosts()} != hosts:
            await asyncio.sleep(0.05)


async def until_told(sweep: Sweep, is_told: Callable[[tuple[str, ...]], bool]) -> None:
    """Wait until `moor status` says this of the compute."""
    troubles: tuple[str, ...] = ()
    async with asyncio.timeout(PATIENCE_S):
        while not is_told(troubles):
            await asyncio.sleep(0.2)
            found = troubles_of(CloudView(await sweep.cloud.overview(), "", ()))
            troubles = tuple([each for each in found if each.startswith("compute-")])


def says(*words: str) -> Callable[[tuple[str, ...]], bool]:
    return lambda troubles: any(all(word in each for word in words) for each in troubles)


def kill_guest(guest: InstanceState) -> None:
    """Kill the process of its QEMU, behind everybody's back."""
    name = f"guest=moor-{guest.id}-{guest.attempt},"
    (process,) = [
        each
        for each in psutil.process_iter(["cmdline"])
        if any(name in word for word in each.info["cmdline"] or ()) and "qemu" in each.info["cmdline"][0]
    ]
    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("how", "why"), [("hang", "has not answered for"), ("stale", "Stale file handle")])
async def test_a_folder_that_is_away_takes_its_hosts_down_and_loses_nothing(
    tmp_path: Path, libvirtds: Libvirtds, how: str, why: str
) -> None:
    async with sweeping(
        tmp_path, libvirtds, "h1", "h2", cloud_settings=HURRIED, away_s=AWAY_S, look_every_s=0.2
    ) as sweep:
        web, gone = [await sweep.cloud.boot(name, flavor=BOTH_DISKS) for name in ("web", "gone")]
        sweep.break_folder(how)
        await until_up(sweep, h1=False, h2=False)
        # The process is heard: its event loop does not wait for the folder.
        await until_told(sweep, says(" is not ready: ", "see the hosts: ", "host h1: ", "host h2: ", why))

        kill_guest(web)
        deleting = await sweep.cloud.client.delete(gone.id)
        sweep.break_folder("")

        await until_up(sweep, h1=True, h2=True)
        stopped = await sweep.cloud.until(web, "stopped")
        assert stopped.reason, stopped
        await deleting.until_done(PATIENCE_S)
        later = await sweep.cloud.boot("later", flavor=BOTH_DISKS)
        assert later.state == "active"
        await until_told(sweep, lambda troubles: not troubles)
        for each in (web, later):
            await (await sweep.cloud.client.delete(each.id)).until_done(PATIENCE_S)
        await sweep.check(f"a folder that was told to {how}")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_libvirtd_that_is_away_takes_its_host_alone_down_and_its_guests_are_told(
    tmp_path: Path, libvirtds: Libvirtds, sent: signal.Signals
) -> None:
    async with sweeping(
        tmp_path, libvirtds, "h1", "h2", cloud_settings=HURRIED, away_s=AWAY_S, look_every_s=0.2
    ) as sweep:
        web = await sweep.cloud.boot("web", flavor=BOTH_DISKS)
        assert web.host is not None
        (other,) = {*libvirtds} - {web.host}
        pid = libvirtds[web.host].pid
        os.kill(pid, sent)
        await until_up(sweep, **{web.host: False, other: True})
        await until_told(sweep, says("see the hosts: ", f"host {web.host}: "))
        # The other host is served: the compute is ready.
        await until_told(sweep, lambda troubles: not says(" is not ready: ")(troubles))
        kill_guest(web)
        later = await sweep.cloud.boot("later", flavor=BOTH_DISKS)
        assert (later.state, later.host) == ("active", other)

        if sent is signal.SIGKILL:
            await sweep.revive()
        else:
            os.kill(pid, signal.SIGCONT)
        await sweep.cloud.until(web, "stopped")
        await until_up(sweep, h1=True, h2=True)
        assert virsh(libvirtds[other].uri, "list", "--name").split() == [f"moor-{later.id}-1"]
        for each in (web, later):
            await (await sweep.cloud.client.delete(each.id)).until_done(PATIENCE_S)
        await sweep.check(f"a libvirtd that got {sent.name}")


async def test_a_compute_that_is_killed_while_its_folder_is_away_begins_when_that_is_back(
    tmp_path: Path, libvirtds: Libvirtds
) -> None:
    async with sweeping(
        tmp_path, libvirtds, "h1", cloud_settings=HURRIED, away_s=AWAY_S, look_every_s=0.2
    ) as sweep:
        web = await sweep.cloud.boot("web", flavor=BOTH_DISKS)
        sweep.break_folder("stale")
        sweep.kill_compute()
        kill_guest(web)
        await sweep.restart()
        await until_told(
            sweep, says(" is not ready: ", "open the hosts: ", "host h1 is not seen yet: ", "Stale file")
        )
        sweep.break_folder("")

        await sweep.cloud.until(web, "stopped")
        await until_up(sweep, h1=True)
        await (await sweep.cloud.client.delete(web.id)).until_done(PATIENCE_S)
        assert domains(libvirtds["h1"].uri) == []
        await sweep.check("a compute that was killed without its folder")
