"""Planted bugs in the kit: settings, parts and their pauses, signals, health, logs, metrics, passwords, and times."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec import structs

import bus.codec
import bus.rabbit.broker
import cell_conductor.store_sql
import compute_sim.wiring
import ironic_sync.core.notifications
import ironic_sync.store_sql
import moor.client.bus_client
import moor.clouds.cloud
import scheduler_worker.aggregates
import scheduler_worker.hosts
import scheduler_worker.overview
import scheduler_worker.requests.reading
import scheduler_worker.waiting
from bus.workers import handling, intake, running, worker
from cell_conductor.core import swapping
from kit import health, http_server, keystone, login, metrics, parts, process, times, urls
from kit.errors import Operational
from kit.health import Health
from kit.logs import JsonFormatter, TextFormatter
from kit.metrics import Histogram
from kit.parts import PartGroup, Retrying, SharedRuns, Status
from kit.process import Systemd
from kit.settings import NOT_SHOWN, BadSetting, Section, SettingsFollower, Stated
from kit.sql import statements
from kit.times import YEAR_MIN
from kit.urls import HostTurns
from tests.planted.replacing import PlantedBug, replaced, replaced_in

_HOUR_S = 3_600.0


def misspelt_variable_ignored() -> AbstractContextManager[None]:
    """A variable that no setting has changes nothing, and nobody is told."""

    def planted(real: Any) -> Any:
        def in_environment(self: Any, environment: Any) -> Any:
            known = {each.variable for each in self.settings.values()}
            return real(self, {name: text for name, text in environment.items() if name in known})

        return in_environment

    return replaced(Section, "in_environment", planted)


def empty_variable_counts() -> AbstractContextManager[None]:
    """An empty variable hides what the settings file says."""

    def planted(real: Any) -> Any:
        def in_environment(self: Any, environment: Any) -> Any:
            told = real(self, environment)
            for field, each in self.settings.items():
                if not environment.get(each.variable, "unset").strip():
                    told[field] = Stated(each.default, each.variable)
            return told

        return in_environment

    return replaced(Section, "in_environment", planted)


def contradiction_without_names() -> AbstractContextManager[None]:
    """Of settings that contradict each other neither is named."""

    def planted(real: Any) -> Any:
        def made_of(self: Any, stated: Any, base: Any = None) -> Any:
            try:
                return real(self, stated, base)
            except BadSetting:
                raise BadSetting(self.name, NOT_SHOWN, "settings", "they contradict each other") from None

        return made_of

    return replaced(Section, "made_of", planted)


def one_follower_told() -> AbstractContextManager[None]:
    """Of several parts that follow a setting only the first gets its new value."""

    def planted(real: Any) -> Any:
        followed: list[object] = []

        def init(self: Any, settings: Any, take: Any) -> None:
            real(self, settings, (lambda _: None) if any(each is settings for each in followed) else take)
            followed.append(settings)

        return init

    return replaced(SettingsFollower, "__init__", planted)


def pause_grows_without_end() -> AbstractContextManager[None]:
    """After an hour without its server, a worker tries again after a day."""

    def planted(_real: Any) -> Any:
        return lambda first, _longest, failures: first * 2.0 ** min(failures - 1, 30)

    return replaced_in((parts, handling, swapping, scheduler_worker.waiting), "grown", planted)


def pauses_not_spread() -> AbstractContextManager[None]:
    """All that failed together try again together."""

    def planted(_real: Any) -> Any:
        return lambda pause, _chance, *, least=0.5: pause  # noqa: ARG005

    return replaced_in((parts, worker, intake), "drawn", planted)


def one_try_too_few() -> AbstractContextManager[None]:
    """What may be tried three times is tried twice."""

    def planted(real: Any) -> Any:
        def call(self: Any, work: Any, *values: Any, **named: Any) -> Any:
            fewer = structs.replace(self, tries_max=max(1, self.tries_max - 1))
            return real(fewer, work, *values, **named)

        return call

    return replaced(Retrying, "__call__", planted)


def bug_beside_a_lost_connection_retried() -> AbstractContextManager[None]:
    """A bug that comes together with a lost connection is tried again without end."""

    def planted(real: Any) -> Any:
        def first_of(error: BaseException) -> Operational | None:
            if isinstance(error, BaseExceptionGroup):
                return next(filter(None, map(first_of, error.exceptions)), None)
            found: Operational | None = real(error)
            return found

        return first_of

    return replaced_in((parts, worker), "operational", planted)


def run_under_way_shared() -> AbstractContextManager[None]:
    """A caller gets the end of a run that began before it called."""

    def planted(real: Any) -> Any:
        def soon(self: Any) -> Any:
            last = vars(self).get("last_run")
            if last is None or last.done():
                last = self.last_run = real(self)
            return last

        return soon

    return replaced(SharedRuns, "soon", planted)


def part_beside_awaited() -> AbstractContextManager[None]:
    """A worker for many cells is not ready while one of them is down."""

    def planted(real: Any) -> Any:
        def awaits(self: Any) -> Any:
            beside, self.is_beside = self.is_beside, False
            try:
                return real.fget(self)
            finally:
                self.is_beside = beside

        return property(awaits)

    return replaced(Status, "awaits", planted)


def failure_told_each_time() -> AbstractContextManager[None]:
    """A part that fails logs the same warning at each try."""

    def planted(real: Any) -> Any:
        def left(self: Any, problem: Any) -> None:
            real(self, problem)
            if self.failures > 1:
                parts.log.warning("part %r fails, trying again: %s", self.name, self.last_error)

        return left

    return replaced(Status, "left", planted)


def parts_stopped_in_reverse() -> AbstractContextManager[None]:
    """A part is stopped before the parts that still hand their work to it."""

    def planted(_real: Any) -> Any:
        async def stop(self: Any) -> None:
            for part in reversed(self.parts):
                if not isinstance(part, Status):
                    await part.stop()

        return stop

    return replaced(PartGroup, "stop", planted)


def draining_without_end() -> AbstractContextManager[None]:
    """A worker that cannot drain ends an hour later."""

    def planted(real: Any) -> Any:
        return lambda told, parts, _drain_s_max: real(told, parts, _HOUR_S)

    return replaced_in((process, running, moor.clouds.cloud, moor.client.bus_client), "run_until", planted)


def certificates_kept() -> AbstractContextManager[None]:
    """A SIGHUP does not make a server read its certificates again."""

    def planted(_real: Any) -> Any:
        @contextmanager
        def told_of_hangups(_work: Any) -> Iterator[None]:
            yield

        return told_of_hangups

    return replaced(http_server, "told_of_hangups", planted)


def sign_of_life_not_repeated() -> AbstractContextManager[None]:
    """systemd hears once that a worker lives, and restarts it later."""

    def planted(real: Any) -> Any:
        def alive(self: Any, now_s: float) -> None:
            if not vars(self).get("was_alive"):
                self.was_alive = True
                real(self, now_s)

        return alive

    return replaced(Systemd, "alive", planted)


def failing_worker_restarted() -> AbstractContextManager[None]:
    """A worker whose broker is away is told to be ill, and is restarted without end."""

    def planted(real: Any) -> Any:
        return property(lambda self: real.fget(self) and not self.failing())

    return replaced(Health, "is_well", planted)


def stopping_worker_ready() -> AbstractContextManager[None]:
    """A worker that stops still says that it is ready, and gets new requests."""

    def planted(real: Any) -> Any:
        def awaits(self: Any) -> Any:
            return {} if self.is_stopping else real(self)

        return awaits

    return replaced(Health, "awaits", planted)


def health_shown_to_all() -> AbstractContextManager[None]:
    """Given a port alone, the page of health and metrics is open to every machine."""

    def planted(real: Any) -> Any:
        def read_address(text: str, setting: str, examples: str, *, default_host: str = "") -> Any:
            return real(text, setting, examples, default_host=default_host and "0.0.0.0")  # noqa: S104 - the bug

        return read_address

    return replaced(health, "read_address", planted)


def line_forged() -> AbstractContextManager[None]:
    """An instance with a line break in its name writes a log line of its own."""

    def planted(real: Any) -> Any:
        return lambda self, record: real(self, record).replace("\\n", "\n")

    return replaced(TextFormatter, "format", planted)


def traceback_dropped() -> AbstractContextManager[None]:
    """JSON logs have no traceback of what ended a worker."""

    def planted(real: Any) -> Any:
        def format_(self: Any, record: logging.LogRecord) -> str:
            trace, record.exc_info = record.exc_info, None
            try:
                return str(real(self, record))
            finally:
                record.exc_info = trace

        return format_

    return replaced(JsonFormatter, "format", planted)


def parcel_counted_once() -> AbstractContextManager[None]:
    """Many messages of one age count as one."""

    def planted(real: Any) -> Any:
        return lambda self, seconds, _count=1, labels=(): real(self, seconds, 1, labels)

    return replaced(Histogram, "observe", planted)


def negative_age_subtracted() -> AbstractContextManager[None]:
    """A message from a machine whose clock is ahead makes the sum of all ages smaller."""

    def planted(real: Any) -> Any:
        def observe(self: Any, seconds: float, count: int = 1, labels: Any = ()) -> None:
            real(self, seconds, count, labels)
            self.by_labels[labels].total_s += min(seconds, 0.0) * count

        return observe

    return replaced(Histogram, "observe", planted)


def label_values_not_limited() -> AbstractContextManager[None]:
    """Each name that another program invents is a series of its own in Prometheus."""

    def planted(_real: Any) -> Any:
        return lambda names, values_max=0: {name: name for name in names}  # noqa: ARG005

    owners = (metrics, scheduler_worker.hosts, scheduler_worker.overview, scheduler_worker.requests.reading)
    return replaced_in(owners, "limited", planted)


def host_that_failed_tried_first() -> AbstractContextManager[None]:
    """A worker tries the same node of a cluster first, though that one is down."""
    return replaced(HostTurns, "failed", lambda _real: lambda _self, _host: None)


def old_password_kept() -> AbstractContextManager[None]:
    """A password that is changed in its file is used after a restart only."""

    def planted(real: Any) -> Any:
        known: dict[str, str] = {}

        def read_secret(file: str) -> str:
            if file not in known:
                known[file] = real(file)
            return known[file]

        return read_secret

    owners = (urls, bus.rabbit.broker, keystone, login, statements)
    return replaced_in(owners, "read_secret", planted)


def microsecond_lost() -> AbstractContextManager[None]:
    """Some times are stored a microsecond too early."""

    def planted(_real: Any) -> Any:
        return lambda at: int(at.timestamp() * 1_000_000)

    owners = (
        *(times, cell_conductor.store_sql, scheduler_worker.aggregates, compute_sim.wiring),
        *(ironic_sync.core.notifications, ironic_sync.store_sql),
    )
    return replaced_in(owners, "microseconds", planted)


def far_future_accepted() -> AbstractContextManager[None]:
    """A time in the year 9999 is accepted, and no database can add a day to it."""

    def planted(real: Any) -> Any:
        def finder_of(kind: type) -> Any:
            finder = real(kind)
            if finder is None:
                return None

            def look(value: Any) -> Any:
                found = finder(value)
                return found if found is not None and found[1].year < YEAR_MIN else None

            return look

        return finder_of

    return replaced(bus.codec, "finder_of", planted)


BUGS: dict[str, PlantedBug] = {
    "a misspelt variable is ignored": misspelt_variable_ignored,
    "an empty variable hides the settings file": empty_variable_counts,
    "settings that contradict each other are not named": contradiction_without_names,
    "a setting read again reaches one part only": one_follower_told,
    "the pause before a try grows without end": pause_grows_without_end,
    "all that failed together try again together": pauses_not_spread,
    "the last try of a retried call left out": one_try_too_few,
    "a bug beside a lost connection is retried": bug_beside_a_lost_connection_retried,
    "a caller gets the end of an earlier run": run_under_way_shared,
    "a worker waits for each of its cells": part_beside_awaited,
    "each failed try is a warning": failure_told_each_time,
    "a part is stopped before those that need it": parts_stopped_in_reverse,
    "a worker that cannot drain ends an hour later": draining_without_end,
    "new certificates need a restart": certificates_kept,
    "systemd hears once that a worker lives": sign_of_life_not_repeated,
    "a worker is restarted because its broker is away": failing_worker_restarted,
    "a worker that stops is told to be ready": stopping_worker_ready,
    "the health page is open to all machines": health_shown_to_all,
    "a name forges a log line": line_forged,
    "JSON logs without tracebacks": traceback_dropped,
    "the messages of a parcel measured as one": parcel_counted_once,
    "a clock that is ahead makes ages negative": negative_age_subtracted,
    "the values of a label are not limited": label_values_not_limited,
    "a node of a cluster that is down tried first": host_that_failed_tried_first,
    "a new password in its file needs a restart": old_password_kept,
    "a time is stored a microsecond too early": microsecond_lost,
    "a time in the year 9999 accepted": far_future_accepted,
}
