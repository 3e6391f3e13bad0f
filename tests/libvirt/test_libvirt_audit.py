"""An audit finds guests of libvirt that run on, and could not be started again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus.messages.build import Image, InstanceState
from tests.libvirt.guest_images import write_image
from tests.libvirt.libvirt_cloud import libvirt_cloud, libvirt_settings, until
from tests.libvirt.test_libvirt_alternates import URI, connection  # noqa: F401 - a fixture: the test machine has room

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
    write_image(settings.images_folder / "kernel", "not a kernel")
    async with libvirt_cloud(tmp_path, {"c1": settings}) as cloud:
        web = await cloud.boot(image=Image(source="tiny", kernel="kernel"))
        assert await cloud.problems(web, amounts=NEEDS) == []
        file = lost(tmp_path, web)
        away = file.rename(tmp_path / "away")

        (problem,) = await cloud.until_problem(web, words.format(file), amounts=NEEDS)
        assert problem.startswith(f"instance {web.id}: attempt 1 on h1 of cell c1 cannot run again: ")
        await until(lambda: words.format(file) in caplog.text)

        away.rename(file)
        assert await cloud.problems(web, amounts=NEEDS) == []
        await (await cloud.client.delete(web.id)).until_done()
