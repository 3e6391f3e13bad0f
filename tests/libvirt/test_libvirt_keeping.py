"""Real guests under policies: one that dies is started again, and those of a lost host are built anew once it is off."""

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from bus.messages.build import DIED, InstanceState
from bus.settings import BusSettings
from keeper.settings import PACE, KeeperSettings
from keeper.wiring import keeper_parts
from moor.client import KeepingPolicy
from tests.libvirt.libvirt_cloud import (
    SETTINGS,
    LibvirtCloud,
    domains,
    files,
    libvirt_cloud,
    libvirt_settings,
)
from tests.servers.libvirtd import PrivateLibvirtd
from tests.waiting import until


@pytest.fixture(autouse=True)
def _quick_keepers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers look often, and guests that died rest for a moment alone."""
    quick = structs.replace(PACE, idle_s=0.2, died_s=0.2, rests_s=(0.0, 0.2), spread_s=0.5)
    monkeypatch.setattr("moor.clouds.cloud.keeper_parts", partial(keeper_parts, pace=quick))


def guests_on(libvirtd: PrivateLibvirtd) -> list[int]:
    """The processes of the guests there: the daemon has some, too."""
    found = []
    for pid in libvirtd.processes():
        with suppress(psutil.NoSuchProcess):
            found += [pid] if any("guest=" in each for each in psutil.Process(pid).cmdline()) else []
    return found


async def one_process(libvirtd: PrivateLibvirtd, other_than: int = 0) -> int:
    """The process of the one guest there, when that is another one than before."""
    (found,) = await until(
        lambda: guests_on(libvirtd),
        "a guest runs",
        lambda pids: len(pids) == 1 and pids[0] != other_than,
    )
    return found


async def told(cloud: LibvirtCloud, guest: InstanceState, state: str, reason: str = "") -> InstanceState:
    return await until(
        lambda: cloud.client.show(guest.id),
        f"it is {state}",
        lambda found: found.state == state and found.reason.startswith(reason),
    )


async def test_a_guest_that_is_killed_is_started_again_three_times_and_then_stays_stopped(
    tmp_path: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]
) -> None:
    first, _ = libvirtds
    async with libvirt_cloud(tmp_path, {"c1": libvirt_settings(tmp_path, first.uri)}) as cloud:
        await cloud.client.set_policy(KeepingPolicy(scope="cloud", restarts=3))
        web = await cloud.boot()
        pid = await one_process(first)
        for _ in range(3):
            os.kill(pid, signal.SIGKILL)
            pid = await one_process(first, other_than=pid)
            await told(cloud, web, "active")
        os.kill(pid, signal.SIGKILL)
        await told(cloud, web, "stopped", DIED)

        counts = {each.field: each.value for each in await cloud.client.policy_of(web.id)}
        assert counts["started_again"].startswith("3, the last time")
        starts = [each.by async for each in cloud.client.history(web.id) if each.what == "start"]
        assert [f"restart {number} of 3" in by for number, by in enumerate(starts, 1)] == [True] * 3
        assert guests_on(first) == []
        assert (await cloud.client.show(web.id)).state == "stopped"
        await cloud.delete(web)
        await until(lambda: files(tmp_path) == [])


async def test_the_guest_of_a_lost_host_runs_elsewhere_only_after_its_process_has_ended(
    tmp_path: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]
) -> None:
    first, second = libvirtds
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    bus = BusSettings(host_down_s=3.0)
    settings = structs.replace(SETTINGS, keeper=KeeperSettings(hooks_folder=str(hooks)), bus=bus)
    hosts = {"c1": libvirt_settings(tmp_path, first.uri, second.uri, away_s=1.0)}
    async with libvirt_cloud(tmp_path, hosts, settings=settings) as cloud:
        web = await cloud.boot(hosts=("h1",))
        pid = await one_process(first)
        # As if a controller switched the host off: its guests' processes end.
        fence = hooks / "power-off"
        fence.write_text(
            f"#!/bin/sh\nkill -9 {pid}\nwhile kill -0 {pid} 2>/dev/null; do sleep 0.1; done\ndate +%s.%N >> {tmp_path}/off\n"
        )
        fence.chmod(0o755)
        await cloud.client.set_policy(
            KeepingPolicy(scope="cloud", guests="evacuate", fence="power-off", lost_max=1)
        )

        first.kill()
        try:
            # Nobody hears of the host, and its guest runs on.
            await until(lambda: cloud.client.show_host("h1"), "it is silent", lambda found: not found.up)
            assert psutil.pid_exists(pid)
            there = await until(
                lambda: cloud.client.show(web.id),
                "it is elsewhere",
                lambda found: (found.state, found.host) == ("active", "h2"),
            )
            off_s = [float(line) for line in (tmp_path / "off").read_text().split()]
            assert len(off_s) == 1
            again = await one_process(second)
            assert psutil.Process(again).create_time() >= off_s[0] - 0.02
            assert not psutil.pid_exists(pid)
            (campaign,) = [each async for each in cloud.client.list_campaigns(ended=True)]
            assert campaign.name == "lost-c1-h1"
            assert (await cloud.client.show_host("h1")).setting.mode == "dead"
        finally:
            await asyncio.to_thread(first.start)
        # The lost host removes its copy when it is back.
        await cloud.client.set_host("h1", "up")
        await until(lambda: (len(domains(first.uri)), len(domains(second.uri))) == (0, 1), "it is cleaned")
        assert (await cloud.client.show(there.id)).host == "h2"
        await cloud.delete(web)
        await until(lambda: files(tmp_path) == [])
