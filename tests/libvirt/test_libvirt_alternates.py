"""What goes wrong on one host of a cloud: its words are told, nothing is left there, and the instance runs on the alternate."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest

from bus.messages.build import InstanceState
from compute_sim.libvirt.settings import LibvirtRules
from tests.libvirt.host_devices import host_at_work
from tests.libvirt.libvirt_cloud import LibvirtCloud, files, libvirt_cloud, libvirt_settings

pytestmark = pytest.mark.asyncio

# Both hosts are shares of libvirt's one test machine, which lives in this process.
URI = "test:///default"


def two_hosts(folder: Path, **more: Any) -> dict[str, LibvirtRules]:
    hosts = (f"h1={URI}", f"h2={URI}")
    return {"c1": libvirt_settings(folder, "", hosts=hosts, domain_type="test", **more)}


@pytest.fixture(autouse=True)
def connection() -> Iterator[Any]:
    """The test machine without the domain that it has, since that takes all of its memory. It is left as it was."""
    opened = libvirt.open(URI)
    own = opened.lookupByName("test")
    text = own.XMLDesc()
    remove(own)
    yield opened
    for each in opened.listAllDomains():
        remove(each)
    opened.defineXML(text).create()


def remove(domain: Any) -> None:
    if domain.isActive():
        domain.destroy()
    domain.undefine()


def check_taken(folder: Path, web: InstanceState, failed_on: str) -> str:
    """The instance is whole on the alternate, and nowhere else. Returns why the first host failed."""
    (failure,) = web.failures
    assert (web.state, failure.host) == ("active", failed_on)
    assert web.host != failed_on
    assert {Path(each).parts[1] for each in files(folder)} == {web.host}
    return failure.reason


async def delete(cloud: LibvirtCloud, folder: Path, web: InstanceState) -> None:
    await (await cloud.client.delete(web.id)).until_done()
    assert files(folder) == []
    assert await cloud.problems() == []


async def test_a_disk_that_is_full_is_named_and_the_alternate_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_on: list[str] = []
    sync = os.fsync

    def full(file: int) -> None:
        if full_on and host_at_work() == full_on[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    def fill(step: str) -> None:
        if step == "disks: image" and not full_on:
            full_on.append(host_at_work())

    monkeypatch.setattr(os, "fsync", full)
    async with libvirt_cloud(tmp_path, two_hosts(tmp_path), at_step=fill) as cloud:
        web = await cloud.boot()

        why = check_taken(tmp_path, web, full_on[0])
        assert why == f"image 'tiny' cannot be cached in {tmp_path / 'cache'}: No space left on device"
        assert {each.suffix for each in (tmp_path / "cache").iterdir()} == {"", ".json"}
        await delete(cloud, tmp_path, web)
