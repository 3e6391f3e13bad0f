"""The compute ends at each step of its work, and libvirtd too: afterwards each guest has its row, each row its guest, and no file is left."""

import shutil
from functools import partial
from pathlib import Path

from compute_sim.core.attempts import AttemptRecord, AttemptState, HostOrder
from compute_sim.libvirt.work import GivenUp
from tests.libvirt.driven_host import Host, which
from tests.waiting import wait_for


class Killed(GivenUp):
    """The process ends here, and cleans nothing up."""


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
    attempt = host.begun(work)
    wait_for(lambda: step not in host.interrupts, f"the step {step!r}")
    return attempt


def test_a_guest_that_runs_is_not_built_anew_since_its_restored_folder_says_that_it_is_being_built(
    host: Host, tmp_path: Path
) -> None:
    """So does a compute that was killed after the guest had started, and before that was noted."""
    backup = tmp_path / "backup"
    for step in ("build: note", "build: start"):
        host.interrupts[step] = partial(shutil.copytree, host.folder / "instances", backup)
        attempt = host.begun(host.spawn())
        assert host.end_of_attempt(attempt) == ""
        (disk,) = (host.folder / "instances").glob("*/*/disk")
        before, number = which(disk), domain_number(host)
        for each in (host.folder / "instances").rglob("*.json"):
            each.unlink()
        for each in backup.rglob("*.json"):
            shutil.copy(each, host.folder / "instances" / each.relative_to(backup))
        host.restart()
        host.steps.clear()

        (found,) = host.driver.has("c1")
        for record in (attempt, found):
            assert host.end_of_attempt(record) == "", step
            assert (which(disk), domain_number(host)) == (before, number), step
        assert "build: clean" not in host.steps
        assert host.driver.has("c1")[0].state is AttemptState.BUILT
        host.destroy_both()
        shutil.rmtree(backup)


def domain_number(host: Host) -> int:
    """Libvirt gives another one at each start."""
    with host.libvirt() as connection:
        (number,) = [each.ID() for each in connection.listAllDomains() if each.name() != "test"]
    return int(number)
