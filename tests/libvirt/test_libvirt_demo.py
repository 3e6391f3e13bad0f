"""`moor demo --libvirt` as a person runs it, to its end or not: nothing is left of it."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bus.messages.build import InstanceState
from engine.flavors import RequestId
from laboratory.demo_guests import GuestFindings, checks_of
from tests.stories.moor.moor_process import moor_says, started
from tests.unit.examples.values import CONSUMER, REQUEST
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the demo has its files. Sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="demo-") as found:
        yield Path(found)


def left_in(place: Path) -> list[str]:
    """The files there, and the command lines of all processes that name this place."""
    lines = [each.name for each in place.iterdir()]
    for each in psutil.process_iter(["cmdline"]):
        line = " ".join(each.info["cmdline"] or ())
        if str(place) in line and each.pid != os.getpid():
            lines.append(line)
    return lines


async def test_twenty_guests_run_through_a_kill_a_resize_and_a_libvirtd_that_goes_away(place: Path) -> None:
    said = (
        "20 guests are active",
        "a guest of Moorage is up",
        "it is stopped: died: its hypervisor process has ended",
        "was resized from 32 to 64 MiB: its domain has 65,536 KiB",
        "instances stay active: nobody knows better",
        "✓ 20 active instances and 20 running domains on 4 hosts are the same, and no other is defined",
        "✓ the killed guest was stopped",
        "✓ the resized guest has 65,536 KiB in libvirt",
        "its guests ran on, a new one went to",
        "✓ the books of placement, the API level, the cells and their hosts agree",
        "✓ 20 instances are deleted: no domain and no disk is left",
        "✓ every libvirtd and every QEMU process has ended, and every file is removed",
    )
    await moor_says(0, said, "demo", "--libvirt", TMPDIR=str(place))
    assert left_in(place) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("said", ["starting a libvirtd", "guests are active"])
async def test_nothing_is_left_of_a_demo_that_was_stopped(
    place: Path, number: signal.Signals, said: str
) -> None:
    async with started("demo", "--libvirt", TMPDIR=str(place)) as demo:
        await demo.until_printed(said)
        demo.send_signal(number)
        ended = await demo.ended()
    assert ended.code != 0
    # Its keepers end by themselves when it has ended.
    await until(lambda: not left_in(place))


def seen(**changes: object) -> GuestFindings:
    active = InstanceState(id=CONSUMER, request_id=RequestId(REQUEST), sequence=1, state="active")
    well: dict[str, object] = {
        "started": active,
        "memory_kib": 65536,
        "away": "h2",
        "ran_on": True,
        "elsewhere": "h1",
        "waited": True,
        "wanted": {"h1": ["moor-a-1"], "h2": []},
        "found": {"h1": ["moor-a-1"], "h2": []},
        "defined": {"h1": ["moor-a-1"], "h2": []},
    }
    return GuestFindings(**{**well, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"stopped_s": 11.0}, "the killed guest was seen only after 11.0 s, must be within 10 s"),
        ({"started": None}, "the killed guest was started again, and is unknown"),
        ({"memory_kib": 1}, "the resized guest has 1 KiB in libvirt, must have 65536"),
        ({"ran_on": False}, "not all guests of h2 ran on while its libvirtd was away"),
        ({"elsewhere": "h2"}, "a guest was booted on h2, whose libvirtd was away"),
        ({"waited": False}, "a guest of h2 was gone before its libvirtd came back"),
        ({"wanted": {"h2": ["moor-b-1"], "h1": ["moor-a-1"]}}, "h2: no domain runs for moor-b-1"),
        ({"wanted": {}}, "h1: no active instance has moor-a-1"),
        ({"defined": {"h2": ["moor-c-1"]}}, "h2: defined, but off: moor-c-1"),
        ({"wanted": {}, "found": {}}, "no guest runs"),
    ],
)
def test_each_thing_that_is_not_as_it_must_be_is_a_problem(changes: dict[str, object], problem: str) -> None:
    assert not any(each.problems for each in checks_of(seen()))
    assert [each for check in checks_of(seen(**changes)) for each in check.problems] == [problem]
