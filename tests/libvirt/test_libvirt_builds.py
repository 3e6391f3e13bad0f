"""A build request starts a guest: on libvirt's test driver, and a real one on QEMU."""

import json
import subprocess
from pathlib import Path

from engine.flavors import ConfigDriveParts, text_of
from tests.libvirt.libvirt_cloud import (
    TEXT,
    domains,
    files,
    libvirt_cloud,
    libvirt_settings,
    virsh,
)
from tests.servers.libvirtd import PrivateLibvirtd
from tests.waiting import until


def file_in(drive: Path, name: str) -> str:
    words = ("isoinfo", "-R", "-i", str(drive), "-x", f"/openstack/latest/{name}")
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


async def test_a_guest_is_built_stopped_started_and_destroyed(
    tmp_path: Path, libvirtd: PrivateLibvirtd
) -> None:
    uri = libvirtd.uri
    async with libvirt_cloud(tmp_path, {"c1": libvirt_settings(tmp_path, uri)}) as cloud:
        web = await cloud.boot(config_drive=text_of(ConfigDriveParts(user_data="#cloud-config")))
        assert (web.state, web.host) == ("active", "h1")
        assert domains(uri) == [f"moor-{web.id}-1"]
        drive = tmp_path / next(each for each in files(tmp_path) if each.endswith("/config.iso"))
        assert f'source file="{drive}"' in virsh(uri, "dumpxml", f"moor-{web.id}-1").replace("'", '"')
        assert file_in(drive, "user_data") == "#cloud-config"
        assert json.loads(file_in(drive, "meta_data.json")) == {
            "uuid": str(web.id),
            "name": "web",
            "hostname": "web",
        }
        found = await until(
            lambda: cloud.console(web), "the guest has written", lambda told: told.text.endswith(TEXT)
        )
        assert (found.attempt, found.none, found.next) == (1, "", found.start + len(found.text))
        assert (await cloud.console(web, start=found.start + 5)).text.startswith(found.text[5:])
        end = await cloud.console(web, start=-5)
        assert end.start == end.size - 5

        await (await cloud.client.stop(web.id)).until_done()
        assert virsh(uri, "list", "--name").split() == []
        await (await cloud.client.start(web.id)).until_done()
        assert virsh(uri, "list", "--name").split() == [f"moor-{web.id}-1"]

        await cloud.delete(web)
        assert (domains(uri), files(tmp_path)) == ([], [])
        assert (await cloud.console(web)).none == "no host of cell 'c1' has the instance"


async def test_a_guest_that_was_killed_is_told_without_a_look_and_runs_again(
    tmp_path: Path, libvirtd: PrivateLibvirtd
) -> None:
    uri = libvirtd.uri
    async with libvirt_cloud(tmp_path, {"c1": libvirt_settings(tmp_path, uri, look_every_s=600.0)}) as cloud:
        web = await cloud.boot()

        virsh(uri, "destroy", f"moor-{web.id}-1")
        assert "by none of our orders" in (await cloud.until(web, "stopped")).reason
        *_, last = [each async for each in cloud.client.history(web.id)]
        assert (last.what, last.outcome, last.source) == ("stopped", "by itself", "h1")

        await (await cloud.client.start(web.id)).until_done()
        assert (await cloud.client.show(web.id)).state == "active"
        await cloud.delete(web)
