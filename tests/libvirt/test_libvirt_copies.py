"""Copies of disks: progress decides how long one may take, and what is copied is on stable storage before its source goes."""

import os
import time
from pathlib import Path

import pytest

from compute_sim.libvirt import disks
from compute_sim.libvirt.work import GivenUp, WorkFailed
from tests.libvirt.driven_host import FIRST, Host


def test_a_copy_that_goes_on_may_take_longer_than_one_that_does_not(tmp_path: Path) -> None:
    slow = "for number in 1 2 3 4 5 6 7 8; do sleep 0.2; echo $number >> it; done; echo done"
    began_s = time.monotonic()
    assert disks.run(("sh", "-c", f"cd {tmp_path}; {slow}"), 1.0, lambda: None) == "done\n"
    assert time.monotonic() - began_s > 1.0

    with pytest.raises(WorkFailed, match=r"^sh has not read or written anything within 0.3 s$"):
        disks.run(("sh", "-c", "sleep 60"), 0.3, lambda: None)
    # What reads a tenant's file has so much time in all.
    with pytest.raises(WorkFailed, match=r"^sh has not ended within 0.5 s$"):
        disks.run(("sh", "-c", f"cd {tmp_path}; {slow}"), 0.5)


def test_a_copy_that_is_given_up_ends(tmp_path: Path) -> None:
    def give_up() -> None:
        if (tmp_path / "pid").exists():
            raise GivenUp

    with pytest.raises(GivenUp):
        disks.run(("sh", "-c", f"cd {tmp_path}; echo $$ > part; mv part pid; exec sleep 60"), 60.0, give_up)

    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.fixture
def stable(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """The files and folders that were written to stable storage."""
    found = set()
    real = os.fsync

    def fsync(number: int) -> None:
        real(number)
        found.add((os.fstat(number).st_dev, os.fstat(number).st_ino))

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def stored_as(path: Path) -> tuple[int, int]:
    return (path.stat().st_dev, path.stat().st_ino)


def test_a_saved_disk_and_its_name_are_on_stable_storage(host: Host, stable: set[tuple[int, int]]) -> None:
    assert host.end_of(host.spawn(project="shop")) == ""
    assert host.end_of(host.stop(5, save_as=f"{FIRST}-5", project="shop")) == ""

    saved = host.settings.images_folder / "projects" / "shop" / f"{FIRST}-5"
    assert {stored_as(saved), stored_as(saved.parent)} <= stable


def test_a_disk_that_was_received_is_on_stable_storage(host: Host, stable: set[tuple[int, int]]) -> None:
    assert host.end_of(host.spawn()) == ""
    assert host.end_of(host.stop()) == ""
    assert host.work_of(host.receive()).failure == ""

    for name in ("disk", "order.json"):
        file = host.folder / "instances" / "h1" / f"{FIRST}.2" / name
        assert {stored_as(file), stored_as(file.parent)} <= stable
