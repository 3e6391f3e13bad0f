"""The compute ends at each step of its work, and libvirtd too: afterwards each guest has its row, each row its guest, and no file is left."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compute_sim.core.attempts import AttemptRecord, HostOrder, begun
from compute_sim.libvirt.work import GivenUp
from tests.libvirt.test_libvirt_failures import Host, which


class Killed(GivenUp):
    """The process ends here, and cleans nothing up."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


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
