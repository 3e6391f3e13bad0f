"""The files of guests, and the work on them, without a hypervisor: nobody loses what is theirs, and nobody gets more than they have claimed."""

import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
from msgspec import structs

from compute_sim.core.attempts import AttemptRecord, Work, begun
from compute_sim.libvirt import guest_folders, running
from compute_sim.libvirt.disks import write_whole
from compute_sim.libvirt.driver import LibvirtDriver
from compute_sim.libvirt.guest_folders import AdoptedDomain, GuestDisks, GuestFolder, GuestFolders, KeptOrder
from compute_sim.libvirt.guest_work import GuestWork
from compute_sim.libvirt.images import CachedImage, CachedImages
from compute_sim.libvirt.settings import LibvirtHost, LibvirtRules
from compute_sim.libvirt.work import WorkFailed, WorkQueues
from compute_sim.store_sql import kept_attempts
from engine.flavors import Flavor
from engine.inventories import ResourceAmount, Share
from tests.unit.compute.attempt_cases import ADOPT, HOST, SPAWN
from tests.waiting import PATIENCE_S


def go_on(_: str = "") -> None:
    """Nothing gives up the work."""


def never() -> bool:
    return False


@pytest.fixture
def images(tmp_path: Path) -> CachedImages:
    made = CachedImages(LibvirtRules(folder=str(tmp_path)))
    made.begin()
    return made


@pytest.fixture
def folders(tmp_path: Path) -> list[GuestFolder]:
    """The folders of two attempts."""
    made = GuestFolders(str(tmp_path), "h1")
    made.begin()
    return [made.of(SPAWN.instance, attempt) for attempt in (1, 2)]


def test_a_guest_that_is_given_back_keeps_its_disks(folders: list[GuestFolder], tmp_path: Path) -> None:
    disk, (folder, _) = tmp_path / "of-another-cloud", folders
    disk.touch()
    folder.note(ADOPT)
    folder.keep_adopted(AdoptedDomain("guest", (str(disk),)))
    folder.forget_adopted()
    assert (disk.exists(), folder.path.exists()) == (True, False)


def test_a_guest_that_moves_has_its_disk_and_its_config_drive(folders: list[GuestFolder]) -> None:
    for folder in folders:
        folder.note(SPAWN)
    source, target = folders
    source.disk_at().write_text("disk")
    source.config_drive.write_text("drive")
    guest_folders.copy_disks(source, target, go_on)
    assert (target.disk_at().read_text(), target.config_drive.read_text()) == ("disk", "drive")


def test_a_guest_whose_claim_is_too_small_for_its_disks_is_not_built(
    folders: list[GuestFolder], images: CachedImages
) -> None:
    share = Share(host=HOST, amounts=(ResourceAmount(HOST, "DISK_GB", 2),))
    greedy = structs.replace(SPAWN, flavor=Flavor(root_gb=2, ephemeral_gb=2), share=share)
    with pytest.raises(WorkFailed, match="2 DISK_GB are claimed, too few"):
        GuestDisks(images).try_out(KeptOrder(greedy), folders[0], go_on)


def test_a_guest_that_runs_is_not_built_anew(
    folders: list[GuestFolder], images: CachedImages, tmp_path: Path
) -> None:
    def only_done(step: str) -> None:
        assert step == "build: done"

    folders[0].keep(KeptOrder(SPAWN))
    # There are no domains to build it with.
    work: Any = GuestWork
    work(None, GuestFolders(str(tmp_path), "h1"), GuestDisks(images), {}).go_on(SPAWN, only_done)
    assert folders[0].has_done(SPAWN)


def test_an_image_stays_in_the_cache_as_long_as_an_order_names_it(
    folders: list[GuestFolder], images: CachedImages, tmp_path: Path
) -> None:
    needed, other = [tmp_path / "cache" / (letter * 40) for letter in "ab"]
    for each in (needed, other):
        each.touch()
        Path(f"{each}.json").write_bytes(msgspec.json.encode(CachedImage("debian", str(each))))
    folders[0].keep(KeptOrder(SPAWN, uses=(str(needed),)))
    images.forget_unused(float("inf"))
    assert (needed.exists(), other.exists()) == (True, False)


def test_what_counts_as_written_is_on_stable_storage_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stable: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: stable.append(os.fstat(number).st_ino))
    write_whole(tmp_path / "order.json", b"{}")
    assert stable == [(tmp_path / "order.json").stat().st_ino, tmp_path.stat().st_ino]
    with pytest.raises(OSError, match="Not a directory"):
        write_whole(tmp_path / "order.json" / "below a file", b"{}")


async def test_a_compute_whose_database_is_lost_knows_the_guests_that_its_hosts_have(
    images: CachedImages, tmp_path: Path
) -> None:
    guest = begun(SPAWN, Work(), 0.0)

    class OneGuest(LibvirtDriver):
        def has(self, cell: str) -> list[AttemptRecord]:
            return [guest] if cell == "c1" else []

    driver = OneGuest(LibvirtHost("h1", ""), LibvirtRules(folder=str(tmp_path)), images)
    async with kept_attempts(f"sqlite+aiosqlite:///{tmp_path}/attempts.sqlite", "c1") as store:
        await running.adopt(store, [driver], "c1")
        async with store.transaction() as tx:
            assert (await tx.of_hosts([HOST]))[HOST] == [guest]


def test_what_is_ordered_for_an_instance_waits_for_what_was_ordered_before() -> None:
    queues, told, goes_on = WorkQueues(1, "h1"), SimpleQueue[str](), threading.Event()
    queues.add(1, lambda _: told.put(f"built: {goes_on.wait(PATIENCE_S)}"), builds=True, is_useless=never)
    queues.add(1, lambda _: told.put("destroyed"), builds=False, is_useless=never)
    # That for another instance waits for no build.
    queues.add(2, lambda _: told.put("another"), builds=False, is_useless=never)
    assert told.get(timeout=PATIENCE_S) == "another"
    goes_on.set()
    assert [told.get(timeout=PATIENCE_S) for _ in range(2)] == ["built: True", "destroyed"]
