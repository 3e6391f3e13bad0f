"""The notes of shadow mode are kept in a bounded number, for a bounded time, and survive a worker that was killed while it wrote."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from engine.flavors import InstanceId
from kit.settings import BadSetting
from nova_bridge.settings import NOVA
from nova_bridge.shadow.notes import NotesFile, ShadowNote, read_notes
from tests.waiting import Clock

START = datetime(2026, 11, 25, 10, tzinfo=UTC)


def note(number: int, after_s: float = 0) -> ShadowNote:
    return ShadowNote(
        at=START + timedelta(seconds=after_s),
        request_id=f"req-{number}",
        instance=InstanceId(UUID(int=number)),
        verdict="same",
        ours="h1",
        nova="h1",
    )


def kept_in(
    path: Path, clock: Clock[datetime] | None = None, notes_max: int = 10, kept_s: float = 1000
) -> NotesFile:
    return NotesFile(path, notes_max=notes_max, kept_s=kept_s, clock=clock or Clock(START))


def numbers(path: Path, since: datetime | None = None) -> list[int]:
    return [each.instance.int for each in read_notes(path, since).notes]


def test_a_line_that_a_killed_worker_cut_off_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    kept_in(path).add([note(1), note(2)])
    path.write_bytes(path.read_bytes()[:-20])
    kept_in(path).add([note(3)])
    read = read_notes(path)

    assert [each.instance.int for each in read.notes] == [1, 3]
    assert read.unreadable == 1


def test_old_notes_go_with_time(tmp_path: Path) -> None:
    path, clock = tmp_path / "notes", Clock(START)
    file = kept_in(path, clock, kept_s=100)
    file.add([note(1)])
    clock.now += timedelta(seconds=60)
    file.add([note(2, 60)])
    clock.now += timedelta(seconds=60)
    file.add([note(3, 120)])
    assert numbers(path) == [2, 3]

    for each in (path, path.with_name("notes.before")):
        os.utime(each, (START.timestamp(), START.timestamp()))
    clock.now += timedelta(seconds=1)
    file.prune()
    with pytest.raises(FileNotFoundError):
        read_notes(path)
    file.add([note(4)])
    assert numbers(path) == [4]


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"MOOR_NOVA_EXCHANGE": "an exchange"}, "exchange"),
        ({"MOOR_NOVA_RPC_TIMEOUT_S": "0"}, "rpc_timeout_s"),
    ],
)
def test_settings_that_make_no_sense_are_refused(variables: dict[str, str], why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        NOVA.read(variables)
