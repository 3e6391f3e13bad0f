"""Whatever a look at a host meets is told and tried again, and the host is not chosen meanwhile. Nothing waits on the event loop."""

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NoReturn

import libvirt
import pytest
from msgspec import structs

from bus.messages.cell import StartInstance
from compute_sim.core.attempts import (
    WELL,
    AttemptState,
    Silent,
    Work,
    looked_at,
    stopped_by_itself,
)
from compute_sim.handlers import ComputeStore
from compute_sim.libvirt import hypervisor
from compute_sim.libvirt.running import adopt
from compute_sim.libvirt.work import LibvirtAway
from tests.libvirt.broken_folder import BrokenFolder
from tests.libvirt.driven_host import Host, driver_of
from tests.waiting import PATIENCE_S, wait_for

# How long a host may be unseen before it is silent.
AWAY_S = 0.5


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with closing(Host(tmp_path, away_s=AWAY_S, look_every_s=0.1, images_kept_s=0.2)) as made:
        yield made


@pytest.fixture
def folder(host: Host) -> Iterator[BrokenFolder]:
    """The folder of the host. This thread may not wait for it: on it the event loop would run."""
    made = BrokenFolder(host.folder, threading.current_thread())
    yield made
    made.heal()


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (BrokenFolder.hang, " has not answered for "),
        (lambda folder: folder.fail(errno.ESTALE), "[Errno 116] Stale file handle"),
    ],
    ids=["hanging", "stale"],
)
def test_a_host_whose_folder_is_away_is_silent_and_sees_its_guests_when_it_is_back(
    host: Host, folder: BrokenFolder, breaks: Callable[[BrokenFolder], None], words: str
) -> None:
    web = host.built()
    breaks(folder)
    wait_for(lambda: words in host.driver.why_not_seen)
    assert str(host.folder) in host.driver.why_not_seen
    host.driver.condition(1.0)
    silent = host.driver.condition(1.0 + AWAY_S)
    assert isinstance(silent, Silent)
    # What is to be told now is not lost: it is told when the host is back.
    later, said = looked_at(stopped_by_itself(web, "killed", 0.0), silent, Work(), 2.0)
    assert (said, later.ends_s is None) == (None, False)

    with host.libvirt() as connection:
        connection.lookupByName(host.domains[0]).destroy()
    folder.heal()
    wait_for(lambda: not host.driver.why_not_seen)

    assert host.driver.condition(2.0) == WELL
    wait_for(lambda: bool(host.driver.stopped([web])))
    (found,) = host.driver.stopped([web])
    assert found.why == "its domain was destroyed in libvirt, by none of our orders"
    # It runs again, and looks from before that do not count.
    assert (
        host.end_of(StartInstance(cell="c1", instance=web.instance, attempt=1, host=web.host, number=1)) == ""
    )
    assert host.driver.stopped([web]) == []


# Where in libvirt, and with what, a look fails.
MET = [
    (where, problem)
    for where in ("domainEventRegisterAny", "getCapabilities", "listAllDomains")
    for problem in (libvirt.libvirtError("planted"), OSError(errno.ESTALE, "planted"), TypeError("planted"))
]


@pytest.mark.parametrize(("where", "problem"), MET)
def test_a_look_is_tried_again_whatever_it_meets(
    host: Host, monkeypatch: pytest.MonkeyPatch, where: str, problem: Exception
) -> None:
    def fail(*_: object) -> NoReturn:
        raise problem

    monkeypatch.setattr(libvirt.virConnect, where, fail)
    with closing(driver_of(host.settings)) as driver:
        driver.open()
        wait_for(lambda: "planted" in driver.why_not_seen)
        assert not driver.wait_until_known(0.0)
        monkeypatch.undo()

        assert driver.wait_until_known(PATIENCE_S), driver.why_not_seen
        assert driver.condition(0.0) == WELL


def test_a_broken_file_of_one_guest_hides_no_other_from_the_next_process(host: Host) -> None:
    for number in (1, 2, 3):
        assert host.end_of(host.spawn(number)) == ""
    one, two, _ = sorted((host.folder / "instances").glob("*/*"))
    (one / "order.json").write_bytes(b"")
    (two / "adopted.json").write_bytes(b"{")
    host.restart()

    store = ComputeStore(lambda: 0.0)
    asyncio.run(adopt(store, [host.driver], "c1"))
    living = asyncio.run(store.living((), None, limit=10))
    assert [each.state for each in living] == [AttemptState.BUILT] * 3
    (two / "adopted.json").unlink()


def test_a_host_whose_folder_cannot_be_made_can_be_closed(host: Host) -> None:
    (host.folder / "file").write_text("")
    settings = structs.replace(host.settings, folder=str(host.folder / "file"))
    with closing(driver_of(settings)) as driver, pytest.raises(OSError, match="file"):
        driver.open()


def test_a_libvirt_that_does_not_answer_holds_up_nothing_but_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypervisor, "_OTHERS_S", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        waiting = hypervisor.Hypervisor(f"qemu+unix:///system?socket={tmp_path / 'silent'}", lambda: None)

        def connect() -> None:
            with suppress(LibvirtAway), waiting.connected():
                pass

        first = threading.Thread(target=connect, daemon=True)
        first.start()
        asked, _ = silent.accept()
        with asked:
            with pytest.raises(LibvirtAway, match="another thread waits for its answer"), waiting.connected():
                pass
            closes = threading.Thread(target=waiting.close, daemon=True)
            closes.start()
            closes.join(PATIENCE_S)
            assert not closes.is_alive()
            assert first.is_alive()
    first.join(PATIENCE_S)
    assert not first.is_alive()
