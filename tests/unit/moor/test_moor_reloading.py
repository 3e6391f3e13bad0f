"""A settings file that is read again: what changes, what needs a restart, and what changes nothing."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from bus.settings import BUS
from kit.settings import SettingsFollower, tell_followers
from moor.settings import GENERAL, Reloading, sources
from moor.worker_settings import SCHEDULER, SECTIONS
from scheduler_worker.settings import SchedulerSettings

FIRST = """
log_level = "warning"
[scheduler]
instances_per_host_max = 8
horizon_s = 3600
[bus]
prefetch = 50
"""


class Worker:
    """A worker's file, the settings of its start, and those of the scheduler that a follower was told last."""

    def __init__(self, directory: Path, flags: dict[str, str] | None = None) -> None:
        self.file = directory / "moorage.toml"
        self.file.write_text(FIRST)
        read = sources({}, config=self.file, here=directory)
        scheduler_flags = {
            name: SCHEDULER.stated(name, text, f"--{name}") for name, text in (flags or {}).items()
        }
        given, bus = read.of(SCHEDULER, flags=scheduler_flags), read.of(BUS)
        self.scheduler = given
        self.told = 0
        self._following = SettingsFollower(given, self._take)
        self.reloading = Reloading(self.file, directory, log_level="INFO")
        self.reloading.hold(SCHEDULER, given, scheduler_flags)
        self.reloading.hold(BUS, bus, {})
        self.reloading.hold(GENERAL, read.of(GENERAL), {})

    def _take(self, fresh: SchedulerSettings) -> None:
        self.scheduler = fresh
        self.told += 1

    def reload(self, text: str) -> None:
        self.file.write_text(text)
        self.reloading.reload()


@pytest.fixture(autouse=True)
def _same_level() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "moor.settings"]


def test_followers_are_told_what_can_change_and_the_rest_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(tmp_path)
    before = worker.scheduler

    worker.reload(FIRST.replace("= 8", "= 20").replace("3600", "7200").replace("warning", "error"))

    assert before.instances_per_host_max == 8
    assert (worker.scheduler.instances_per_host_max, worker.scheduler.horizon_s) == (20, 3600)
    assert logging.getLogger().level == logging.ERROR
    where = f"({worker.file})"
    assert said(caplog) == [
        f"reloaded: scheduler.instances_per_host_max: 8 -> 20 {where}",
        f"reloaded: log_level: 'WARNING' -> 'ERROR' {where}",
        f"needs a restart: scheduler.horizon_s: 3600 -> 7200 {where}",
        f"{worker.file} was read again: 2 settings changed, 1 need a restart",
    ]


def test_a_setting_that_is_no_longer_in_the_file_has_its_default_again(tmp_path: Path) -> None:
    worker = Worker(tmp_path)

    worker.reload("")

    assert worker.scheduler.instances_per_host_max == SchedulerSettings().instances_per_host_max
    assert logging.getLogger().level == logging.INFO


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "[scheduler]\nmove_timeout_s = 0",
            "scheduler.move_timeout_s is 0 .* must be a whole number, at least 1",
        ),
        ("[scheduler]\nmove_timeout_s = 9\nno_such = 1", "no_such .* there is no such setting"),
        (
            "[scheduler]\nrequest_timeout_s = 9000",
            "node_request_timeout_s is 7200, must be at least request_timeout_s",
        ),
        ("move_timeout_s = 9", "move_timeout_s .* there is no such setting"),
        (
            "[openstack]\npasword = 's3cr7t'",
            r"as they are: openstack.pasword \(\S+\): there is no such setting; did you",
        ),
        ("[scheduler]\nmove_timeout_s = 9\n[placement]\nhorizon_s = -1", "placement.horizon_s is -1"),
        (
            "log_level = 'loud'\n[scheduler]\nmove_timeout_s = 9",
            "log_level is 'loud' .* must be one of DEBUG, INFO",
        ),
        (
            "log_format = 'xml'\n[scheduler]\nmove_timeout_s = 9",
            "log_format is 'xml' .* must be one of text, json",
        ),
        ("[scheduler", "config is .* cannot be read"),
        (
            "[scheduler]\nmove_timeout_s = 9\n[bus]\nmessages_waiting_max = 1",
            "messages_waiting_max must be at least two parcels",
        ),
    ],
)
def test_a_wrong_file_changes_nothing_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, why: str
) -> None:
    worker = Worker(tmp_path)
    before = logging.getLogger().level

    worker.reload(text)

    assert (worker.told, logging.getLogger().level) == (0, before)
    (line,) = said(caplog)
    assert line.startswith("the settings stay as they are: ")

    assert re.search(why, line)


def test_no_password_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(tmp_path)

    worker.reload(FIRST.replace("[scheduler]", 'bus_url = "amqp://u:s3cret@h/"\n[scheduler]'))

    assert "needs a restart: bus_url: '' -> 'amqp://u:***@h/'" in said(caplog)[0]


@pytest.mark.parametrize("section", [GENERAL, *SECTIONS.values()], ids=lambda each: each.name or "top")
def test_every_setting_that_is_reloaded_exists(section: object) -> None:
    assert section.reloaded <= section.settings.keys()  # type: ignore[attr-defined]


def test_a_follower_is_told_of_its_own_settings_as_long_as_it_is_kept() -> None:
    class Small(Struct, frozen=True):
        number: int = 1

    settings, other, told = Small(), Small(), list[int]()
    kept = [SettingsFollower(settings, lambda fresh: told.append(fresh.number)) for _ in range(2)]

    tell_followers(settings, Small(2))
    tell_followers(other, Small(3))
    kept.clear()
    tell_followers(settings, Small(4))

    assert told == [2, 2]
