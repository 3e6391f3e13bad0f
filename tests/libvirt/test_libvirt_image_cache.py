"""The cache of images has a limit, which hosts keep from guests; no project fills it, and none pushes out what is another's or needed."""

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from compute_sim.core.trees import ProviderTree
from compute_sim.libvirt import images
from engine.flavors import Image
from tests.libvirt.broken_folder import BrokenFolder
from tests.libvirt.driven_host import FIRST, Host
from tests.libvirt.hostile_server import HostileServer
from tests.libvirt.test_libvirt_images import cached, cleaning, see_it_clean
from tests.waiting import wait_for

MIB = 1024 * 1024


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer(os.urandom(MIB)) as made:
        yield made


def host_of(folder: Path, server: HostileServer, **settings: Any) -> Host:
    return Host(
        folder, image_servers=(f"http://127.0.0.1:{server.port}",), images_bytes_max=8 * MIB, **settings
    )


class Builds:
    """Builds on a host from images that each have another URL and a MiB."""

    def __init__(self, host: Host, server: HostileServer) -> None:
        self.host, self.url = host, server.url
        self._number = 0

    def build(self, project: str, image: str, *, stays: bool = False) -> str:
        """Why a build of this image failed; otherwise its guest goes again, unless it `stays`."""
        self._number += 1
        failure = self.host.end_of(
            self.host.spawn(self._number, project=project, image=Image(source=f"{self.url}/whole/{image}"))
        )
        if not failure and not stays:
            assert self.host.destroy(self._number) == ""
        return failure

    def sources(self) -> set[str]:
        return {each.removeprefix(f"{self.url}/whole/") for each in self.host.driver.images()}


@pytest.fixture
def builds(tmp_path: Path, server: HostileServer) -> Iterator[Builds]:
    with closing(host_of(tmp_path, server)) as host:
        yield Builds(host, server)


def test_a_project_pushes_out_only_its_own_images_the_last_used_last(builds: Builds) -> None:
    for image in ("b1", "b2"):
        assert builds.build("bank", image) == ""
    for image in ("a1", "a2", "a3", "a1", "a4"):
        assert builds.build("shop", image) == ""

    assert builds.sources() == {"b1", "b2", "a1", "a3", "a4"}
    assert builds.build("bank", "b3") == ""
    assert builds.sources() == {"b2", "b3", "a1", "a3", "a4"}


def test_images_that_disks_need_stay_and_their_project_gets_no_more(builds: Builds, tmp_path: Path) -> None:
    for number in range(4):
        assert builds.build("shop", f"a{number}", stays=True) == ""

    failure = builds.build("shop", "a4")

    assert failure.startswith(f"image '{builds.url}/whole/a4' does not fit into the cache of images")
    assert f"{8 * MIB} bytes (images_gb), project 'shop' half of what others leave, and" in failure
    assert builds.sources() == {"a0", "a1", "a2", "a3"}
    assert list((tmp_path / "cache").glob("*.part")) == []
    # However many projects there are, there is room for one more, and for public images.
    for project in ("bank", "farm", ""):
        assert builds.build(project, project or "public", stays=True) == ""
    assert sum(each.stat().st_blocks * 512 for each in (tmp_path / "cache").iterdir()) <= 8 * MIB


def test_a_public_image_pushes_out_what_nobody_needs(builds: Builds) -> None:
    for project, count in (("shop", 4), ("bank", 2)):
        for number in range(count):
            assert builds.build(project, f"{project}{number}") == ""
    for number in range(4):
        assert builds.build("", f"public{number}", stays=True) == ""

    assert builds.sources() >= {f"public{number}" for number in range(4)}
    assert len(builds.sources()) == 8


def test_a_download_of_unknown_length_ends_at_the_limit(builds: Builds) -> None:
    url = f"{builds.url}/noise"
    failure = builds.host.end_of(builds.host.spawn(project="shop", image=Image(source=url)))
    assert failure.startswith(f"image '{url}' does not fit into the cache of images")
    assert builds.host.left == []


def test_a_disk_that_is_nearly_full_takes_no_image(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_FREE_MIN", 2**63)
    monkeypatch.setattr(images, "_FREE_PART", 1)
    assert "and the disk must not fill up" in builds.build("shop", "a")
    assert builds.host.left == []


@pytest.mark.parametrize(
    ("settings", "reserved"),
    [
        ({"disk_gb": 100}, 10),
        ({"disk_gb": 5}, 1),
        ({"disk_gb": 1}, 1),
        ({"disk_gb": 100, "images_gb": 30}, 30),
        ({"disk_gb": 20, "images_gb": 30}, 20),
    ],
)
def test_a_host_keeps_the_disk_of_the_cache_from_guests(
    tmp_path: Path, settings: dict[str, Any], reserved: int
) -> None:
    with closing(Host(tmp_path, **settings)) as host:
        tree = host.driver.update_provider_tree(ProviderTree(host.driver.root), 0.0)
        assert tree.providers[tree.root].inventories["DISK_GB"].reserved == reserved


def test_the_disk_of_an_instance_that_was_saved_comes_into_no_cache(tmp_path: Path) -> None:
    with closing(Host(tmp_path, images_bytes_max=8 * MIB)) as host:
        assert host.end_of(host.spawn(project="shop")) == ""
        before = cached(tmp_path)
        saved = f"{FIRST}-5"
        assert host.end_of(host.stop(5, save_as=saved, project="shop")) == ""
        assert host.destroy() == ""

        assert (
            host.end_of(host.spawn(attempt=2, project="shop", image=Image(source=saved), from_saved=True))
            == ""
        )

        assert cached(tmp_path) == before
        assert host.running == [f"moor-{FIRST}-2"]


def test_a_download_that_runs_out_of_time_takes_none_of_the_time_of_those_that_wait_for_it(
    tmp_path: Path, server: HostileServer
) -> None:
    with closing(host_of(tmp_path, server, download_s=1.0)) as host:
        orders = [host.spawn(number, image=Image(source=f"{server.url}/held")) for number in (1, 2)]
        attempts = [host.begun(each) for each in orders]
        wait_for(lambda: any(not host.driver.look_at(each, 0.0).left_ms for each in attempts))
        server.release.set()

        failures = sorted(host.end_of_attempt(each) for each in attempts)

        assert failures == ["", f"image '{server.url}/held' is not there within 1 s"]


def test_guests_that_end_are_seen_while_the_sweep_of_the_cache_hangs(tmp_path: Path) -> None:
    with closing(Host(tmp_path)) as host:
        assert host.end_of(host.spawn(100)) == ""
        assert host.destroy(100) == ""
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "disk").touch()
    folder = BrokenFolder(tmp_path / "snapshots")
    folder.hang()
    try:
        with cleaning(tmp_path, away_s=0.5) as host:
            wait_for(lambda: folder.waiting > 0)
            web = host.built()
            with host.libvirt() as connection:
                connection.lookupByName(host.domains[0]).destroy()
            wait_for(lambda: bool(host.driver.stopped([web])))
            assert host.driver.why_not_seen == ""
            folder.heal()
    finally:
        folder.heal()


def test_older_parts_of_a_console_are_not_read(tmp_path: Path) -> None:
    with closing(Host(tmp_path)) as host:
        assert host.end_of(host.spawn()) == ""
        (folder,) = (tmp_path / "instances" / "h1").iterdir()
        (folder / "console.log.0").touch()
        broken = BrokenFolder(folder / "console.log.0")
        broken.fail(errno.EACCES)
        try:
            with cleaning(tmp_path) as other:
                see_it_clean(other)
        finally:
            broken.heal()
