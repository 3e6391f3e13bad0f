"""Guests move between two libvirts on one machine: resized, migrated, rebuilt, shelved, evacuated."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from bus.messages.build import InstanceState
from compute_sim.libvirt.guest_folders import GuestFolders
from engine.flavors import Flavor, Image
from keeper.settings import KeeperSettings
from moor.client import CampaignWork, NotDone
from tests.libvirt.libvirt_cloud import (
    SETTINGS,
    LibvirtCloud,
    domains,
    files,
    libvirt_cloud,
    libvirt_settings,
    virsh,
    write_image,
)
from tests.servers.libvirtd import PrivateLibvirtd
from tests.waiting import until


def moving(
    folder: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd], **more: Any
) -> AbstractAsyncContextManager[LibvirtCloud]:
    return libvirt_cloud(folder, {"c1": libvirt_settings(folder, *(each.uri for each in libvirtds), **more)})


def where(libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]) -> list[int]:
    """How many domains each libvirt has."""
    return [len(domains(each.uri)) for each in libvirtds]


async def moved(cloud: LibvirtCloud, state: InstanceState, how: str, **fields: Any) -> InstanceState:
    await (await getattr(cloud.client, how)(state.id, **fields)).until_done()
    return await cloud.client.show(state.id)


async def test_a_guest_is_migrated_resized_rebuilt_and_shelved(
    tmp_path: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]
) -> None:
    async with moving(tmp_path, libvirtds) as cloud:
        write_image(tmp_path / "images" / "other", "other system\r\n")
        web = await cloud.boot(hosts=("h1",))

        there = await moved(cloud, web, "migrate", hosts=("h2",), confirm_s=0)
        assert (there.state, there.host) == ("active", "h2")
        await until(lambda: where(libvirtds) == [0, 1])
        # The source is left: nothing is there.
        await until(lambda: len(list((tmp_path / "instances" / "h1").iterdir())) == 0)

        here = await moved(
            cloud, there, "resize", size=Flavor(name="larger", vcpus=2, ram_mb=64), hosts=("h1",), confirm_s=0
        )
        assert (here.state, here.host) == ("active", "h1")
        (name,) = domains(libvirtds[0].uri)
        assert "CPU(s):         2" in virsh(libvirtds[0].uri, "dominfo", name)

        (disk,) = (tmp_path / "instances" / "h1").glob("*/disk")
        before = disk.stat().st_ino
        with pytest.raises(NotDone, match=r"image 'mistyped' is not in "):
            await moved(cloud, here, "rebuild", image=Image(source="mistyped"))
        assert (await cloud.client.show(here.id)).state == "active"
        assert disk.stat().st_ino == before
        anew = await moved(cloud, here, "rebuild", image=Image(source="other"))
        assert anew.state == "active"
        (console,) = (tmp_path / "instances" / "h1").glob("*/console.log")
        await until(lambda: "other system" in console.read_text(errors="replace"))

        assert (await moved(cloud, anew, "offload")).state == "offloaded"
        await until(lambda: where(libvirtds) == [0, 0])
        assert len([*(tmp_path / "images").glob(f"*{web.id}*")]) == 1

        again = await moved(cloud, anew, "unshelve")
        assert again.state == "active"
        (console,) = (tmp_path / "instances" / again.host).glob("*/console.log")
        await until(lambda: "other system" in console.read_text(errors="replace"))

        await cloud.delete(web)
        await until(lambda: where(libvirtds) == [0, 0] and files(tmp_path) == [])


async def test_a_guest_moves_live(tmp_path: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]) -> None:
    async with moving(tmp_path, libvirtds) as cloud:
        web = await cloud.boot(hosts=("h1",))

        there = await moved(cloud, web, "live_migrate", hosts=("h2",))

        assert (there.state, there.host) == ("active", "h2")
        await until(lambda: where(libvirtds) == [0, 1])
        await cloud.delete(web)
        await until(lambda: files(tmp_path) == [])


async def test_hosts_are_restarted_one_after_the_other_while_their_guests_run(
    tmp_path: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "reboot").write_text(
        f'#!/bin/sh\ntest -z "$(ls {tmp_path}/instances/$1)" && echo $1 >> {tmp_path}/ran\n'
    )
    (hooks / "reboot").chmod(0o755)
    keeping = structs.replace(SETTINGS, keeper=KeeperSettings(hooks_folder=str(hooks)))
    hosts = {"c1": libvirt_settings(tmp_path, *(each.uri for each in libvirtds))}
    async with libvirt_cloud(tmp_path, hosts, settings=keeping) as cloud:
        web, other = await cloud.boot(hosts=("h1",)), await cloud.boot("db", hosts=("h2",))
        work = CampaignWork(kind="restart", hosts=("h1", "h2"), hook="reboot")

        began = await cloud.client.start_campaign(work, name="night")
        ended = await cloud.client.follow_campaign(began.id, timeout_s=100)

        assert (ended.campaign.life, ended.campaign.hosts) == ("done", {"done": 2})
        # Each was empty when its hook ran.
        assert sorted((tmp_path / "ran").read_text().split()) == ["h1", "h2"]
        movements = await cloud.client.list_movements(campaign="night", ended=True)
        assert {(each.life, each.kind) for each in movements} == {("done", "live-migrate")}
        assert {each.setting.mode for each in await cloud.client.list_hosts()} == {"up"}
        await cloud.delete(web, other)
        await until(lambda: files(tmp_path) == [])


async def test_a_host_whose_libvirt_ended_is_down_and_its_guest_is_evacuated_with_its_disk(
    tmp_path: Path, libvirtds: tuple[PrivateLibvirtd, PrivateLibvirtd]
) -> None:
    first, _ = libvirtds
    async with moving(tmp_path, libvirtds, away_s=1.0) as cloud:
        web = await cloud.boot(hosts=("h1",))
        (disk,) = (tmp_path / "instances" / "h1").glob("*/disk")
        written = disk.stat().st_size
        first.kill()
        try:
            await cloud.client.set_host("h1", "down", reason="its libvirt ended")
            there = await moved(cloud, web, "evacuate", hosts=("h2",))
            assert (there.state, there.host) == ("active", "h2")
            (copy,) = (tmp_path / "instances" / "h2").glob("*/disk")
            assert copy.stat().st_size == written
            # The copy is an overlay of the cached image, which must be kept as long as it needs it.
            kept = GuestFolders(str(tmp_path), "h2").of(web.id, there.attempt).kept()
            assert kept is not None
            assert kept.uses
            cached = {each.name for each in (tmp_path / "cache").iterdir()}
            assert {Path(each).name for each in kept.uses} <= cached
        finally:
            await asyncio.to_thread(first.start)
        await cloud.client.set_host("h1", "up")
        # What the lost host kept is removed when it is back.
        await until(lambda: where(libvirtds) == [0, 1])
        await cloud.delete(web)
        await until(lambda: files(tmp_path) == [])
