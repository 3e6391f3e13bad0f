"""Downloads that drip, under a whole cloud whose compute is a process: it serves other orders, and ends when it is told."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from tests.fork_server import ForkedProcess, start_module
from tests.libvirt.hostile_server import HostileServer
from tests.libvirt.libvirt_cloud import PATIENCE_S, TINY, cloud_of, files, libvirt_settings, no_parts
from tests.servers.libvirtd import PrivateLibvirtd

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

# More than are worked on at once.
DRIPPING = ("drip/1", "drip/2", "drip/3", "headers/1", "headers/2", "silent/1", "silent/2", "silent/2")


async def test_downloads_that_drip_hold_up_no_other_order_and_no_end_of_the_compute(tmp_path: Path) -> None:
    with PrivateLibvirtd() as libvirtd, HostileServer() as server:
        settings = libvirt_settings(
            tmp_path, libvirtd.uri, cpu_ratio=16.0, image_servers=(server.url,), image_s=600.0
        )
        (tmp_path / "compute.json").write_bytes(msgspec.json.encode(settings))
        async with cloud_of(tmp_path, {"c1": settings}, {"c1": no_parts}) as cloud:
            compute = await _started(tmp_path)
            try:
                await cloud.until_up({"c1": settings})
                (old, older) = [await cloud.boot(name) for name in ("old", "older")]
                dripping = [
                    await cloud.client.boot(TINY, name=path, image=f"{server.url}/{path}")
                    for path in DRIPPING
                ]
                await _until_asked(server, len(dripping))

                web = await cloud.boot("web")
                assert web.state == "active"
                await (await cloud.client.stop(old.id)).until_done(PATIENCE_S)
                await (await cloud.client.delete(older.id)).until_done(PATIENCE_S)
                await (await cloud.client.delete(dripping[0].instances[0])).until_done(PATIENCE_S)

                compute.terminate()
                async with asyncio.timeout(PATIENCE_S):
                    assert await compute.wait() == 0
                asked = len(server.asked)
                compute = await _started(tmp_path)
                await _until_asked(server, asked + len(dripping) - 1)
                for each in (old.id, *[request.instances[0] for request in dripping[1:]]):
                    await (await cloud.client.delete(each)).until_done(PATIENCE_S)
                assert await cloud.problems(web, amounts={"VCPU": 1, "MEMORY_MB": 32}) == []
            finally:
                compute.kill()
                await compute.wait()
        assert {each.split("/")[2] for each in files(tmp_path)} == {f"{web.id}.1"}


async def _started(folder: Path) -> ForkedProcess:
    with (folder / "compute.log").open("ab") as log:
        return await start_module(
            "tests.libvirt.killed_compute",
            str(folder),
            env={"PATH": os.environ["PATH"]},
            stdout=log,
            stderr=log,
        )


async def _until_asked(server: HostileServer, times: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(server.asked) < times:
            await asyncio.sleep(0.02)
