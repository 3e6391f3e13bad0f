"""Images in a cache that hosts and computes share: whose they are, and when they go."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from engine.flavors import Image
from tests.libvirt.driven_host import FIRST, URI, Host
from tests.libvirt.libvirt_cloud import write_image
from tests.waiting import wait_for


def cached(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / "cache").iterdir() if "." not in each.name)


@contextmanager
def cleaning(folder: Path, **settings: Any) -> Iterator[Host]:
    """A host that keeps no image which nobody needs, and looks all the time."""
    host = Host(folder, hosts=(f"cleaner={URI}",), images_kept_s=0.001, look_every_s=0.02, **settings)
    with closing(host):
        yield host


def see_it_clean(host: Host) -> None:
    """Wait until the host has looked for unused images, from the beginning to the end."""
    for number in (101, 102):
        write_image(host.settings.images_folder / "unused", str(number))
        before = {*cached(host.folder)}
        assert host.end_of(host.spawn(number, image=Image(source="unused"))) == ""
        assert host.destroy(number) == ""
        wait_for(partial(has_only, host.folder, before))


def has_only(folder: Path, images: set[str]) -> bool:
    return {*cached(folder)} <= images


def overlay(base: Path | str, disk: Path) -> None:
    disk.parent.mkdir(parents=True, exist_ok=True)
    command = ("qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", base, disk, "1M")
    subprocess.run(command, check=True)


def a_disk_of_a_guest(host: Host, base: Path) -> None:  # noqa: ARG001 - its order names it
    assert host.end_of(host.spawn()) == ""


def a_kernel(host: Host, base: Path) -> None:  # noqa: ARG001 - as above
    """It is the kernel of one guest, whose disk has another image."""
    assert host.end_of(host.spawn(image=Image(source="disk", kernel="tiny"))) == ""


def a_snapshot(host: Host, base: Path) -> None:
    """Somebody has made it, and no order says so."""
    overlay(os.path.relpath(base, host.folder / "snapshots"), host.folder / "snapshots" / "of.qcow2")


def a_disk_in_a_pool(host: Host, base: Path) -> None:
    pool = host.folder.parent / f"{host.folder.name}-pool"
    overlay(base, pool / "moor-disk")
    there = host.folder / "instances" / "h1" / f"{host.spawn().instance}.1"
    there.mkdir(parents=True)
    (there / "disk").symlink_to(pool / "moor-disk")


def a_guest_in_a_linked_folder(host: Host, base: Path) -> None:
    elsewhere = host.folder.parent / f"{host.folder.name}-elsewhere"
    overlay(base, elsewhere / "disk")
    (host.folder / "instances" / "linked").symlink_to(elsewhere)


@pytest.mark.parametrize(
    "use", [a_disk_of_a_guest, a_kernel, a_snapshot, a_disk_in_a_pool, a_guest_in_a_linked_folder]
)
def test_a_cached_image_stays_as_long_as_a_file_of_any_host_names_it(
    host: Host, tmp_path: Path, use: Callable[[Host, Path], None]
) -> None:
    of_kernel = Image(source="disk", kernel="tiny") if use is a_kernel else Image(source="tiny")
    write_image(host.settings.images_folder / "disk", "another text")
    assert host.end_of(host.spawn(100, image=of_kernel)) == ""
    there = [tmp_path / "cache" / name for name in cached(tmp_path)]
    use(host, there[0])
    assert host.destroy(100) == ""

    with cleaning(tmp_path) as other:
        see_it_clean(other)

    assert [each for each in there if not each.exists()] == []


def test_an_image_that_no_disk_needs_goes_after_a_while(tmp_path: Path) -> None:
    with closing(Host(tmp_path)) as host:
        assert host.end_of(host.spawn()) == ""
        assert host.destroy() == ""
        assert len(cached(tmp_path)) == 1
    # A process was killed while it fetched another one.
    (tmp_path / "cache" / "half.part").touch()
    with cleaning(tmp_path) as other:
        wait_for(lambda: cached(tmp_path) == [] and other.driver.images() == ())
        assert other.left == []


SECOND = UUID(int=2)


@pytest.fixture
def owned(host: Host) -> Host:
    """A host, whose folder of images has public ones, those of two projects, disks that were saved, and what is no image."""
    images = host.settings.images_folder
    for name in (
        *("projects/shop/own", "projects/bank/secret", f"projects/bank/{SECOND}-7"),
        *(f"{FIRST}-5", "projects/shop/tiny", "projects/shop/kept/deep"),
    ):
        write_image(images / name)
    (images / "projects" / "shop" / "link").symlink_to("../bank/secret")
    (images / "public-link").symlink_to("tiny")
    os.mkfifo(images / "pipe")
    return host


# The project of the first instance, and the image that it is to have.
ITS_OWN: list[dict[str, Any]] = [
    {"source": "tiny"},
    {"source": "tiny", "project": "shop"},
    {"source": "public-link", "project": "shop"},
    {"source": "own", "project": "shop"},
    {"source": "tiny", "kernel": "own", "ramdisk": "own", "project": "shop"},
    {"source": f"{SECOND}-7", "project": "bank"},
    # Saved without a project.
    {"source": f"{FIRST}-5"},
]
NOT_ITS_OWN: list[dict[str, Any]] = [
    {"source": "secret", "project": "shop"},
    {"source": "secret"},
    {"source": "own", "project": "bank"},
    {"source": "tiny", "kernel": "secret", "project": "shop"},
    {"source": "tiny", "ramdisk": "secret", "project": "shop"},
    {"source": f"{SECOND}-7", "project": "shop"},
    {"source": f"{SECOND}-7", "project": "shop", "from_saved": True},
    {"source": f"{SECOND}-7"},
    # Whoever may choose the id of an instance that was may not have its disk.
    {"source": f"{FIRST}-5", "project": "shop"},
    {"source": f"{FIRST}-5", "project": "shop", "from_saved": True},
    {"source": "tiny", "kernel": f"{FIRST}-5", "project": "shop"},
    {"source": f"{SECOND}-5", "project": "shop", "from_saved": True},
    {"source": "link", "project": "shop"},
    {"source": "kept", "project": "shop"},
    {"source": "projects"},
    {"source": "pipe"},
    {"source": "bank", "project": ".."},
    {"source": "secret", "project": "../projects/bank"},
    {"source": "secret", "project": "shop/../bank"},
    {"source": "tiny", "kernel": "projects", "project": "."},
]
NO_NAMES: list[dict[str, Any]] = [
    {"source": "projects/bank/secret", "project": "shop"},
    {"source": "../bank/secret", "project": "shop"},
    {"source": "..", "project": "shop"},
    {"source": ".own", "project": "shop"},
    {"source": "/etc/passwd"},
    {"source": "own\n", "project": "shop"},
]


def order_of(case: dict[str, Any]) -> dict[str, Any]:
    """The fields of an order to build or to rebuild this."""
    names = {name: each for name, each in case.items() if name in ("source", "kernel", "ramdisk")}
    return {"image": Image(**names), "project": case.get("project", "")}


@pytest.mark.parametrize("case", ITS_OWN)
def test_an_instance_has_public_images_and_those_of_its_project(owned: Host, case: dict[str, Any]) -> None:
    assert owned.end_of(owned.spawn(**order_of(case))) == ""
    assert owned.work_of(owned.respawn(2, **order_of(case))).failure == ""


@pytest.mark.parametrize(
    ("case", "words"),
    [(each, "is not in {}") for each in NOT_ITS_OWN] + [(each, "is neither an http or") for each in NO_NAMES],
)
def test_an_image_of_others_counts_as_not_there(owned: Host, case: dict[str, Any], words: str) -> None:
    words = words.format(owned.settings.images_folder)
    saved: dict[str, Any] = {"from_saved": True} if "from_saved" in case else {}
    assert words in owned.end_of(owned.spawn(**order_of(case), **saved))
    assert owned.left == []

    assert owned.end_of(owned.spawn(attempt=2)) == ""
    assert words in owned.work_of(owned.respawn(2, attempt=2, **order_of(case))).failure


@pytest.mark.parametrize("project", ["", "shop", "..", "a/b"])
def test_a_saved_disk_is_of_its_project_and_goes_with_the_order_that_says_so(
    host: Host, tmp_path: Path, project: str
) -> None:
    images = host.settings.images_folder
    assert host.end_of(host.spawn(project=project)) == ""
    for number in (5, 9):
        assert host.end_of(host.stop(number, save_as=f"{FIRST}-{number}", project=project)) == ""
    (saved, _) = sorted(images.rglob(f"{FIRST}-*"))
    assert saved.parent.parent == (images / "projects" if project else tmp_path)
    saved.with_name(f".{saved.name}.part").touch()
    write_image(images / "projects" / "bank" / f"{SECOND}-5")
    assert host.destroy() == ""

    # The instance was offloaded by an earlier process.
    host.restart()
    assert (
        host.end_of(host.spawn(attempt=2, image=Image(source=saved.name), project=project, from_saved=True))
        == ""
    )
    assert host.destroy(saved_until=5) == ""
    assert [each.name for each in images.rglob(f"*{FIRST}-*")] == [f"{FIRST}-9"]
    assert host.running == [f"moor-{FIRST}-2"]
    assert host.destroy(saved_until=9) == ""
    assert [*images.rglob(f"*{FIRST}-*")] == []
    assert (images / "projects" / "bank" / f"{SECOND}-5").exists()
