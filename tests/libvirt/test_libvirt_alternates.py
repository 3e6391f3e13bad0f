"""One or two hosts of a cloud on one test machine: what goes wrong on one is told, and the instance runs on the other; the disk of an
instance that is saved belongs to its project; and an audit finds what a host has too much or lacks.
"""

import base64
import errno
import gzip
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest

from bus.messages.build import InstanceState
from engine.flavors import Image
from moor.client import NotDone
from tests.libvirt.host_devices import host_at_work
from tests.libvirt.libvirt_cloud import LibvirtCloud, files, libvirt_cloud, libvirt_settings
from tests.waiting import until

# Both hosts are shares of libvirt's one test machine, which lives in this process.
URI = "test:///default"


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
    async with libvirt_cloud(
        tmp_path, {"c1": libvirt_settings(tmp_path, URI, URI, domain_type="test")}, at_step=fill
    ) as cloud:
        web = await cloud.boot()

        why = check_taken(tmp_path, web, full_on[0])
        assert why == f"image 'tiny' cannot be cached in {tmp_path / 'cache'}: No space left on device"
        assert {each.suffix for each in (tmp_path / "cache").iterdir()} == {"", ".json"}
        await cloud.delete(web)
        assert files(tmp_path) == []


NEEDS = {"VCPU": 1, "MEMORY_MB": 32}


def saved_of(folder: Path, state: InstanceState) -> list[str]:
    return sorted(each.name for each in (folder / "images").rglob(f"*{state.id}*"))


async def offloaded(cloud: LibvirtCloud, state: InstanceState, folder: Path) -> str:
    """Offload it. Returns the name of its saved disk."""
    await (await cloud.client.offload(state.id)).until_done()
    (name,) = saved_of(folder, state)
    return name


async def test_only_its_project_has_a_saved_disk_until_it_runs_again(tmp_path: Path) -> None:
    async with libvirt_cloud(
        tmp_path, {"c1": libvirt_settings(tmp_path, URI, URI, domain_type="test")}
    ) as cloud:
        bank = await cloud.boot(project="bank")
        saved = await offloaded(cloud, bank, tmp_path)

        for image in (Image(source=saved), Image(source="tiny", kernel=saved)):
            with pytest.raises(NotDone, match=f"image '{saved}' is not in .*, for all or for project 'shop'"):
                await cloud.boot(project="shop", image=image)
        shop = await cloud.boot(project="shop")
        with pytest.raises(NotDone, match=f"image '{saved}' is not in "):
            await (await cloud.client.rebuild(shop.id, image=Image(source=saved))).until_done()
        assert (await cloud.client.show(shop.id)).state == "active"
        other = await cloud.boot(project="bank", image=Image(source=saved))
        assert other.state == "active"

        await (await cloud.client.unshelve(bank.id)).until_done()
        await until(lambda: saved_of(tmp_path, bank) == [])
        # Each offload has an image of its own.
        assert await offloaded(cloud, bank, tmp_path) != saved
        await (await cloud.client.unshelve(bank.id)).until_done()
        await until(lambda: saved_of(tmp_path, bank) == [])
        assert await cloud.problems(bank, shop, other, amounts=NEEDS) == []
        await cloud.delete(bank, shop, other)
        await until(lambda: files(tmp_path) == [])


def image_of(folder: Path, *, is_kernel: bool) -> Path:
    """There is one of each in the cache."""
    told = (folder / "cache").glob("*.json")
    return next(each for each in told if ("kernel" in each.read_text()) is is_kernel).with_suffix("")


def like_qcow2(backing_at: int) -> bytes:
    """A file of a tenant, no disk, that begins like an overlay of a file that is not there."""
    return struct.pack(">4sIQI", b"QFI\xfb", 3, backing_at, 4).ljust(24, b"\0") + b"gone"


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (lambda folder, _: image_of(folder, is_kernel=False), "/disk has lost its backing file {}"),
        (lambda folder, web: folder / "instances" / "h1" / f"{web.id}.1" / "disk", " again: {} is gone"),
        (lambda folder, _: image_of(folder, is_kernel=True), " again: {} is gone"),
    ],
    ids=["base", "disk", "kernel"],
)
async def test_a_file_that_is_gone_is_found_and_named(
    tmp_path: Path, lost: Callable[[Path, InstanceState], Path], words: str, caplog: Any
) -> None:
    settings = libvirt_settings(tmp_path, URI, domain_type="test", look_every_s=0.1)
    settings.images_folder.mkdir(exist_ok=True)
    (settings.images_folder / "kernel").write_bytes(like_qcow2(backing_at=2**64 - 1))
    drive = base64.b64encode(gzip.compress(like_qcow2(backing_at=24))).decode()
    async with libvirt_cloud(tmp_path, {"c1": settings}) as cloud:
        web = await cloud.boot(image=Image(source="tiny", kernel="kernel"), config_drive=drive)
        assert await cloud.problems(web, amounts=NEEDS) == []
        file = lost(tmp_path, web)
        away = file.rename(tmp_path / "away")

        (problem,) = await cloud.problems(web, amounts=NEEDS, words=words.format(file))
        assert problem.startswith(f"instance {web.id}: attempt 1 on h1 of cell c1 cannot run again: ")
        await until(lambda: words.format(file) in caplog.text)

        away.rename(file)
        assert await cloud.problems(web, amounts=NEEDS) == []
        await cloud.delete(web)
