"""The commands of docs/libvirt.md, in their order, with a private libvirtd in place of the machine's own."""

import shlex
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from laboratory.private_libvirtd import NEEDED
from tests.libvirt.libvirt_cloud import TEXT, domains, files, write_image
from tests.servers.libvirtd import PrivateLibvirtd
from tests.stories.moor.moor_process import moor, moor_json, moor_says, started
from tests.stories.real_servers import real_servers
from tests.waiting import until
from tools.pages.commands import ROOT, commands_of

PAGE = "docs/libvirt.md"


@pytest.mark.rabbitmq
@pytest.mark.postgresql
@pytest.mark.timeout(300)
async def test_the_commands_of_the_page_build_a_guest_and_remove_it(
    tmp_path: Path, libvirtd: PrivateLibvirtd
) -> None:
    run, *ordered = [command.text for command in commands_of(PAGE)]
    assert len(ordered) == 11
    _write_qcow2(tmp_path)
    settings = {
        "MOOR_LIBVIRT_FOLDER": str(tmp_path),
        "MOOR_LIBVIRT_DOMAIN_TYPE": "qemu",
        "MOOR_LIBVIRT_STOP_S": "0.2",
    }
    async with real_servers() as (bus, database), AsyncExitStack() as workers:
        urls = {"MOOR_BUS_URL": bus, "MOOR_DB_URL": database}
        await moor_says(0, "", "broker", "declare", "--cells", "harbour", **urls)
        for role in (("placement",), ("scheduler",), ("conductor", "--cell", "harbour")):
            await workers.enter_async_context(started("run", *role, **urls))
        await workers.enter_async_context(
            started(*shlex.split(run.replace("qemu:///system", libvirtd.uri))[1:], **settings, **urls)
        )
        await until(
            lambda: moor_json("host", "list", **urls),
            "a host is up",
            lambda hosts: any(each["up"] for each in hosts),
        )
        for text in ordered:
            if text.startswith("moor console"):
                # Its guest needs a moment.
                await until(
                    lambda: moor("console", "web", **urls),
                    "the guest has written",
                    lambda ran: TEXT.strip() in ran.out,
                )
            await moor_says(0, "", *shlex.split(text)[1:], **urls)
            if text.startswith("moor boot"):
                assert len(domains(libvirtd.uri)) == 1
    assert (domains(libvirtd.uri), files(tmp_path)) == ([], [])


def _write_qcow2(folder: Path) -> None:
    write_image(folder / "raw")
    (folder / "images").mkdir()
    made = str(folder / "images" / "debian-12.qcow2")
    subprocess.run(("qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(folder / "raw"), made), check=True)


def test_the_page_names_every_package_that_the_demo_needs() -> None:
    (line,) = [each for each in (ROOT / PAGE).read_text().splitlines() if each.startswith("    apt-get")]
    assert {*NEEDED.values()} <= {*line.split()}
