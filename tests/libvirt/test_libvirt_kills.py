"""The compute ends at each step of its work, and libvirtd too: afterwards each guest has its row, each row its guest, and no file is left."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from bus.messages.cell import (
    DestroyInstance,
    ReceiveInstance,
    RespawnInstance,
    StartInstance,
    StopInstance,
)
from compute_sim.core.attempts import AttemptRecord, HostOrder, begun
from compute_sim.libvirt.work import GivenUp
from tests.libvirt.libvirt_cloud import files
from tests.libvirt.test_libvirt_failures import Host, which


class Killed(GivenUp):
    """The process ends here, and cleans nothing up."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def orders(host: Host) -> dict[str, tuple[tuple[HostOrder, ...], HostOrder]]:
    """What is done before, and the order whose work is interrupted, by its name."""
    spawn = host.spawn()
    stop = StopInstance(cell="c1", instance=spawn.instance, attempt=1, host=spawn.host, number=1)
    start = StartInstance(cell="c1", instance=spawn.instance, attempt=1, host=spawn.host, number=1)
    save = structs.replace(stop, save_as=f"{spawn.instance}-1", project="shop")
    destroy = DestroyInstance(cell="c1", instance=spawn.instance, attempt=1, host=spawn.host)
    forget = structs.replace(destroy, saved_until=1)
    assert spawn.image is not None
    respawn = RespawnInstance(
        cell="c1",
        instance=spawn.instance,
        attempt=1,
        host=spawn.host,
        number=2,
        flavor=spawn.flavor,
        share=spawn.share,
        image=spawn.image,
    )
    receive = ReceiveInstance(
        cell="c1",
        instance=spawn.instance,
        attempt=2,
        host=spawn.host,
        flavor=spawn.flavor,
        share=spawn.share,
        source=spawn.host,
        source_attempt=1,
    )
    return {
        "spawn": ((), spawn),
        "destroy": ((spawn,), destroy),
        "stop": ((spawn,), stop),
        "save": ((spawn,), save),
        "forget": ((spawn, save), forget),
        "start": ((spawn, stop), start),
        "respawn": ((spawn,), respawn),
        "receive": ((spawn, stop), receive),
    }


def steps_of(host: Host, name: str) -> list[str]:
    """The steps of this work, as it goes when nothing interrupts it."""
    before, work = orders(host)[name]
    for each in before:
        assert host.end_of_attempt(begun(each, host.driver.begin(each, 0.0), 0.0)) == ""
    host.steps.clear()
    assert host.end_of_attempt(begun(work, host.driver.begin(work, 0.0), 0.0)) == ""
    found = list(dict.fromkeys(host.steps))
    host.destroy_both()
    return found


@pytest.mark.parametrize(
    "name", ["spawn", "destroy", "stop", "save", "forget", "start", "respawn", "receive"]
)
def test_work_that_a_kill_interrupts_at_any_step_is_done_by_the_next_process(host: Host, name: str) -> None:
    before, work = orders(host)[name]
    steps = steps_of(host, name)
    assert len(steps) >= 2
    for step in steps:
        for each in before:
            assert host.end_of_attempt(begun(each, host.driver.begin(each, 0.0), 0.0)) == ""
        attempt = begun_and_killed(host, work, step)
        host.restart()

        assert host.end_of_attempt(attempt) == "", f"killed at {step!r}"
        check_whole(host, name, step)
        host.destroy_both()
        assert host.left == [], f"killed at {step!r}"


def test_a_rebuild_that_cannot_be_done_leaves_the_guest_though_a_kill_interrupts_it_at_any_step(
    host: Host,
) -> None:
    wrong = host.respawn(2, image_properties={"hw_disk_bus": "tape"})
    assert host.end_of(host.spawn()) == ""
    host.steps.clear()
    assert host.work_of(wrong).runs_on
    steps = list(dict.fromkeys(host.steps))
    assert "try: refuse" in steps
    host.destroy_both()
    for step in steps:
        assert host.end_of(host.spawn()) == ""
        (disk,) = (host.folder / "instances").glob("*/*/disk")
        before = which(disk)
        attempt = begun_and_killed(host, wrong, step)
        host.restart()

        work = host.end_of_work(attempt)
        assert ("tape" in work.failure, work.runs_on) == (True, True), f"killed at {step!r}"
        assert host.running == ["moor-00000000-0000-0000-0000-000000000001-1"], f"killed at {step!r}"
        assert which(disk) == before, f"killed at {step!r}"
        host.destroy_both()
        assert host.left == [], f"killed at {step!r}"


def begun_and_killed(host: Host, work: HostOrder, step: str) -> AttemptRecord:
    def kill() -> None:
        raise Killed

    host.interrupts[step] = kill
    attempt = begun(work, host.driver.begin(work, 0.0), 0.0)
    until_s = time.monotonic() + 30.0
    while step in host.interrupts:
        assert time.monotonic() < until_s, f"the step {step!r} does not come"
        time.sleep(0.005)
    return attempt


def check_whole(host: Host, name: str, step: str) -> None:
    """What must be there after the interrupted work was done."""
    names = {
        "destroy": [],
        "forget": [],
        "receive": ["moor-00000000-0000-0000-0000-000000000001-2"],
    }.get(name, ["moor-00000000-0000-0000-0000-000000000001-1"])
    assert host.domains == names, f"killed at {step!r}"
    is_off = name in ("stop", "save", "destroy", "forget")
    assert host.running == ([] if is_off else names), f"killed at {step!r}"
    saved = [each.name for each in (host.settings.images_folder / "projects").glob("shop/*")]
    if name in ("save", "forget"):
        is_left = name == "save"
        assert saved == ["00000000-0000-0000-0000-000000000001-1"] * is_left, f"killed at {step!r}"
    if name in ("destroy", "forget"):
        assert files(host.folder) == []


def test_a_build_that_a_kill_interrupts_may_be_destroyed_by_the_next_process(host: Host) -> None:
    steps = steps_of(host, "spawn")
    assert steps
    for step in steps:
        begun_and_killed(host, host.spawn(), step)
        host.restart()

        assert host.destroy() == ""
        assert host.left == [], f"killed at {step!r}"
