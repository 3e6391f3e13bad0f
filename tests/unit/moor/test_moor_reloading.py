"""A settings file that is read again: what changes, what needs a restart, and what changes nothing."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from bus.configuration.live import Remade, set_in_place
from bus.configuration.settings import BUS, BusSettings
from moor.reloading import Reloading
from moor.settings import GENERAL, sources
from moor.worker_settings import SCHEDULER, SECTIONS
from scheduler_worker.settings import SchedulerSettings

FIRST = """
log_level = "warning"
[scheduler]
claims_max = 8
horizon_s = 3600
[bus]
prefetch = 50
"""


class Worker:
    """A worker's file, and the settings that its parts hold."""

    def __init__(self, directory: Path, flags: dict[str, str] | None = None) -> None:
        self.file = directory / "moorage.toml"
        self.file.write_text(FIRST)
        read = sources({}, config=self.file, here=directory)
        scheduler_flags = {
            name: SCHEDULER.stated(name, text, f"--{name}") for name, text in (flags or {}).items()
        }
        self.scheduler = read.of(SCHEDULER, flags=scheduler_flags)
        self.bus = read.of(BUS)
        self.reloading = Reloading(self.file, directory, top=read.of(GENERAL), flags={}, log_level="INFO")
        self.reloading.hold(SCHEDULER, self.scheduler, scheduler_flags)
        self.reloading.hold(BUS, self.bus, {})

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
    return [record.getMessage() for record in caplog.records if record.name == "moor.reloading"]


def test_what_can_change_changes_in_place_and_the_rest_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(tmp_path)
    held = worker.scheduler

    worker.reload(FIRST.replace("= 8", "= 20").replace("3600", "7200").replace("warning", "error"))

    assert worker.scheduler is held
    assert (held.claims_max, held.horizon_s) == (20, 3600)
    assert logging.getLogger().level == logging.ERROR
    where = f"({worker.file})"
    assert said(caplog) == [
        f"reloaded: scheduler.claims_max: 8 -> 20 {where}",
        f"reloaded: log_level: 'WARNING' -> 'ERROR' {where}",
        f"needs a restart: scheduler.horizon_s: 3600 -> 7200 {where}",
        f"{worker.file} was read again: 2 settings changed, 1 need a restart",
    ]


def test_a_setting_that_is_no_longer_in_the_file_has_its_default_again(tmp_path: Path) -> None:
    worker = Worker(tmp_path)

    worker.reload("")

    assert worker.scheduler.claims_max == SchedulerSettings().claims_max
    assert worker.bus.prefetch == 50
    assert logging.getLogger().level == logging.INFO


def test_what_needs_a_restart_is_named_again_until_the_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(tmp_path)
    for _ in range(2):
        worker.reload(FIRST.replace("prefetch = 50", "prefetch = 60"))

    assert sum("needs a restart: bus.prefetch: 50 -> 60" in line for line in said(caplog)) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[scheduler]\nclaims_max = 0", "scheduler.claims_max is 0 .* must be a whole number, at least 1"),
        ("[scheduler]\nclaims_max = 9\nno_such = 1", "no_such .* there is no such setting"),
        ("[scheduler]\nclaims_max = 2", "shape_tries_max is 4, must be at most claims_max"),
        ("claims_max = 9", "claims_max .* there is no such setting"),
        (
            "keystone_pasword = 's3cr7t'",
            r"as they are: keystone_pasword \(\S+\): there is no such setting; did you",
        ),
        ("[scheduler]\nclaims_max = 9\n[placement]\nfeed_poll_ms = -1", "placement.feed_poll_ms is -1"),
        (
            "log_level = 'loud'\n[scheduler]\nclaims_max = 9",
            "log_level is 'loud' .* must be one of DEBUG, INFO",
        ),
        (
            "log_format = 'xml'\n[scheduler]\nclaims_max = 9",
            "log_format is 'xml' .* must be one of text, json",
        ),
        ("[scheduler", "config is .* cannot be read"),
        (
            "[scheduler]\nclaims_max = 9\n[bus]\nmessages_waiting_max = 1",
            "messages_waiting_max must be at least two parcels",
        ),
    ],
)
def test_a_wrong_file_changes_nothing_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, why: str
) -> None:
    worker = Worker(tmp_path)
    before = str(worker.scheduler), str(worker.bus), logging.getLogger().level

    worker.reload(text)

    assert (str(worker.scheduler), str(worker.bus), logging.getLogger().level) == before
    (line,) = said(caplog)
    assert line.startswith("the settings stay as they are: ")

    assert re.search(why, line)


def test_values_that_contradict_one_that_needs_a_restart_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By itself the new file is right, but the first pause stays as it was at the start."""
    worker = Worker(tmp_path)

    worker.reload("[bus]\nretry_delay_ms_first = 1\nretry_delay_ms_max = 10\nattempts_max = 7")

    assert worker.bus.retry_delay_ms_max == BusSettings().retry_delay_ms_max
    assert worker.bus.attempts_max == BusSettings().attempts_max
    (line,) = said(caplog)
    assert "bus.retry_delay_ms_max is 10.0" in line or "bus.attempts_max is 7" in line
    assert "beside settings that need a restart" in line


def test_a_flag_counts_before_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(tmp_path, {"claims_max": "30"})

    worker.reload(FIRST.replace("= 8", "= 20"))

    assert worker.scheduler.claims_max == 30
    assert said(caplog)[-1].endswith("was read again: 0 settings changed, 0 need a restart")


def test_a_variable_counts_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(tmp_path)
    monkeypatch.setattr("os.environ", {"MOOR_SCHEDULER_CLAIMS_MAX": "8"})

    worker.reload(FIRST.replace("= 8", "= 20"))

    assert worker.scheduler.claims_max == 8


def test_no_password_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(tmp_path)

    worker.reload(FIRST.replace("[scheduler]", 'bus_url = "amqp://u:s3cret@h/"\n[scheduler]'))

    assert "needs a restart: bus_url: '' -> 'amqp://u:***@h/'" in said(caplog)[0]


def test_what_is_made_of_settings_is_made_again_as_long_as_it_is_kept() -> None:
    class Small(Struct, frozen=True):
        number: int = 1

    settings, other, made = Small(), Small(), list[int]()
    kept = [Remade(settings, lambda: made.append(settings.number))]

    set_in_place(settings, Small(2), ("number",))
    set_in_place(other, Small(3), ("number",))
    kept.clear()
    set_in_place(settings, Small(4), ("number",))

    assert made == [2]


@pytest.mark.parametrize("section", [GENERAL, *SECTIONS.values()], ids=lambda each: each.name or "top")
def test_every_setting_that_is_reloaded_exists(section: object) -> None:
    assert section.reloaded <= section.settings.keys()  # type: ignore[attr-defined]
