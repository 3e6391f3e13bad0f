"""An audit finds guests of libvirt that run on, and could not be started again."""

import base64
import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus.messages.build import InstanceState
from engine.flavors import Image
from tests.libvirt.libvirt_cloud import libvirt_cloud, libvirt_settings
from tests.libvirt.test_libvirt_alternates import URI, connection  # noqa: F401 - a fixture: the test machine has room
from tests.waiting import until

pytestmark = pytest.mark.asyncio
NEEDS = {"VCPU": 1, "MEMORY_MB": 32}


def disk_of(folder: Path, state: InstanceState) -> Path:
    return folder / "instances" / "h1" / f"{state.id}.1" / "disk"


def base_of(folder: Path, state: InstanceState) -> Path:  # noqa: ARG001 - there is one
    return next(
        each for each in (folder / "cache").glob("*.json") if "kernel" not in each.read_text()
    ).with_suffix("")


def kernel_of(folder: Path, state: InstanceState) -> Path:  # noqa: ARG001 - as above
    return next(
        each for each in (folder / "cache").glob("*.json") if "kernel" in each.read_text()
    ).with_suffix("")


def like_qcow2(backing_at: int) -> bytes:
    """A file of a tenant, no disk, that begins like an overlay of a file that is not there."""
    return struct.pack(">4sIQI", b"QFI\xfb", 3, backing_at, 4).ljust(24, b"\0") + b"gone"


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (base_of, "/disk has lost its backing file {}"),
        (disk_of, " again: {} is gone"),
        (kernel_of, " again: {} is gone"),
    ],
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

        (problem,) = await cloud.until_problem(web, words.format(file), amounts=NEEDS)
        assert problem.startswith(f"instance {web.id}: attempt 1 on h1 of cell c1 cannot run again: ")
        await until(lambda: words.format(file) in caplog.text)

        away.rename(file)
        assert await cloud.problems(web, amounts=NEEDS) == []
        await (await cloud.client.delete(web.id)).until_done()
