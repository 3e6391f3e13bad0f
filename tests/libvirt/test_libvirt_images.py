"""Images in a cache that hosts and computes share: whose they are, and when they go."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from bus.messages.build import Image
from tests.libvirt.guest_images import write_image
from tests.libvirt.test_libvirt_failures import Host, wait_for


def cached(folder: Path) -> list[str]:
    """The images in the cache."""
    return sorted(each.name for each in (folder / "cache").iterdir() if "." not in each.name)


@contextmanager
def cleaning(folder: Path, **settings: object) -> Iterator[Host]:
    """A host that keeps no image which nobody needs, and looks all the time."""
    host = Host(folder, name="cleaner", images_kept_s=0.001, look_every_s=0.02, **settings)
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
    tmp_path: Path, use: Callable[[Host, Path], None]
) -> None:
    with closing(Host(tmp_path)) as host:
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
    with cleaning(tmp_path) as other:
        wait_for(lambda: cached(tmp_path) == [])
        assert other.driver.images() == ()


def test_an_image_stays_while_a_file_that_may_name_it_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Host(tmp_path)) as host:
        assert host.end_of(host.spawn()) == ""
        assert host.destroy() == ""
        (before,) = cached(tmp_path)
        unreadable = tmp_path / "instances" / "h1" / "order.json"
        # Reading it is an error, also for root.
        unreadable.symlink_to("/proc/self/mem")
        with cleaning(tmp_path):
            wait_for(lambda: "unused images stay in the cache: " in caplog.text)
            assert str(unreadable) in caplog.text
            assert before in cached(tmp_path)
            unreadable.unlink()
            wait_for(lambda: cached(tmp_path) == [])


def test_an_image_is_not_removed_between_its_download_and_the_disk(tmp_path: Path) -> None:
    with closing(Host(tmp_path)) as host, cleaning(tmp_path) as other:
        for number in range(1, 11):
            write_image(host.settings.images_folder / f"tiny{number}", f"{number}")
            assert host.end_of(host.spawn(number, image=Image(source=f"tiny{number}"))) == ""
        see_it_clean(other)
        assert len(cached(tmp_path)) == 10


def test_a_compute_that_starts_leaves_the_downloads_of_another_one(tmp_path: Path) -> None:
    with closing(Host(tmp_path)) as host:
        others: list[Host] = []
        host.interrupts["disks: download"] = lambda: others.append(Host(tmp_path, name="h2"))
        assert host.end_of(host.spawn()) == ""
        (other,) = others
        with closing(other):
            # Both need it at once, too.
            write_image(host.settings.images_folder / "tiny", "another text")
            ends: list[str] = []
            host.interrupts["disks: download"] = lambda: ends.append(other.end_of(other.spawn(2)))
            assert host.end_of(host.spawn(3)) == ""
            assert ends == [""]
