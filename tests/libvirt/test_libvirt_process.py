"""`moor run compute --driver libvirt` as a process, on RabbitMQ and PostgreSQL: `moor boot` starts a real guest, and the compute is killed."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.libvirt.guest_images import TEXT, write_image
from tests.libvirt.libvirt_cloud import domains, files, virsh
from tests.servers.libvirtd import PrivateLibvirtd
from tests.stories.moor.moor_process import moor, moor_json, started
from tests.stories.real_servers import real_servers

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.rabbitmq,
    pytest.mark.postgresql,
    pytest.mark.timeout(300),
]


@pytest.fixture
def libvirtd() -> Iterator[PrivateLibvirtd]:
    with PrivateLibvirtd() as server:
        yield server


async def test_a_guest_outlives_the_compute_and_is_told_when_it_was_killed(
    tmp_path: Path, libvirtd: PrivateLibvirtd
) -> None:
    write_image(tmp_path / "images" / "tiny.raw")
    compute = ("run", "compute", "--cell", "harbour", "--driver", "libvirt", "--uri", f"rack1={libvirtd.uri}")
    async with real_servers() as (bus_url, db_url), AsyncExitStack() as workers:
        # What finds qemu-img is the compute's own PATH.
        urls = {"MOOR_BUS_URL": bus_url, "MOOR_DB_URL": db_url}
        host = {"MOOR_LIBVIRT_DOMAIN_TYPE": "qemu", "MOOR_LIBVIRT_STOP_S": "0.2"}
        assert (await moor("broker", "declare", "--cells", "harbour", **urls)).code == 0
        for role in (("placement",), ("scheduler",), ("conductor", "--cell", "harbour")):
            await workers.enter_async_context(started("run", *role, **urls))
        options = (*compute, "--folder", str(tmp_path))
        async with started(*options, **urls, **host) as first:
            await _until_state(urls, "host", "list", name="rack1", up=True)
            source = await moor("image", "create", "tiny", "--source", "tiny.raw", **urls)
            assert source.code == 0, source.err
            words = ("--vcpus", "1", "--ram", "32", "--disk", "1", "--image", "tiny", "--name", "web")
            booted = await moor_json("boot", *words, **urls)
            (web,) = booted["instances"]
            assert (web["state"], web["host"]) == ("active", "rack1")
            assert domains(libvirtd.uri) == [f"moor-{web['id']}-1"]
            while TEXT.strip() not in (await moor("console", "web", **urls)).out:
                await asyncio.sleep(0.2)
            # Its guest writes the line again every few seconds.
            async with started("console", "web", "--follow", "--bytes", "1", **urls) as following:
                for _ in range(2):
                    await following.until_printed(TEXT.strip())

            # Another compute of the cell waits until this one has ended, however that ends.
            async with started(*options, **urls, **host) as second:
                await second.until_printed_to_stderr("another process takes compute.harbour.work")
                told = await moor("status", **urls)
                assert (told.code, "is not ready: be the only compute of the cell: " in told.out) == (1, True)
                first.send_signal(signal.SIGKILL)
                await second.until_printed_to_stderr("compute is ready")
                await _until_state(urls, "list", name="web", state="active")

        # The compute was killed; its guest runs on, and is killed in its turn.
        virsh(libvirtd.uri, "destroy", f"moor-{web['id']}-1")
        async with started(*options, **urls, **host):
            await _until_state(urls, "list", name="web", state="stopped")
            assert (await moor("start", "web", **urls)).code == 0
            await _until_state(urls, "list", name="web", state="active")
            assert virsh(libvirtd.uri, "list", "--name").split() == [f"moor-{web['id']}-1"]
            audited = await moor("audit", **urls)
            assert (audited.code, "no faults" in audited.out) == (0, True), audited.out
            assert (await moor("delete", "--wait", "web", **urls)).code == 0
            assert domains(libvirtd.uri) == []
            assert not [each for each in files(tmp_path) if "instances" in each]


async def _until_state(urls: dict[str, str], *command: str, **wanted: object) -> None:
    while True:
        found = await moor_json(*command, **urls)
        rows = found["instances"] if isinstance(found, dict) else found
        if any(all(row.get(key) == value for key, value in wanted.items()) for row in rows):
            return
        await asyncio.sleep(0.2)
