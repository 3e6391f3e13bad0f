"""Planted bugs in the kit: settings, parts, health, logs, metrics, clock; and in the access to databases."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec import structs
from sqlalchemy.exc import DBAPIError

import bus.rabbit.broker
import cell_conductor.store_sql
import compute_sim.wiring
import ironic_sync.core.notifications
import ironic_sync.store_sql
import kit.sql
import moor.clouds.cloud
import scheduler_worker.aggregates
import scheduler_worker.hosts
import scheduler_worker.overview
import scheduler_worker.requests.reading
import scheduler_worker.waiting
from bus import unreadable
from bus.workers import handlers, intake, running, worker
from bus.workers.set_aside import FailedRows
from cell_conductor.core import swapping
from kit import clock, health, http_server, keystone, login, metrics, parts, process, urls
from kit.errors import Failure, Locked, Operational, Unavailable
from kit.health import Health
from kit.logs import JsonFormatter, TextFormatter
from kit.metrics import Histogram
from kit.parts import PartGroup, Retrying, SharedRuns, Status
from kit.process import Systemd
from kit.settings import NOT_SHOWN, BadSetting, Section, SettingsFollower, Stated
from kit.sql import dialects, migrations, postgresql, statements
from kit.sql.databases import KeyStatement, SqliteDatabase, SqliteTransaction
from kit.sql.postgresql import PostgresDatabase, PostgresSession, PostgresTransaction
from kit.urls import HostTurns
from placement_worker.store_sql import trees
from tests.planted.replacing import planted, planted_as, planted_by, replaced, replaced_in

_HOUR_S = 3_600.0


# A variable that no setting has changes nothing, and nobody is told.
@planted("a misspelt variable is ignored", Section, "in_environment")
def misspelt_variable_ignored(real: Any, self: Any, environment: Any) -> Any:
    known = {each.variable for each in self.settings.values()}
    return real(self, {name: text for name, text in environment.items() if name in known})


# An empty variable hides what the settings file says.
@planted("an empty variable hides the settings file", Section, "in_environment")
def empty_variable_counts(real: Any, self: Any, environment: Any) -> Any:
    told = real(self, environment)
    for field, each in self.settings.items():
        if not environment.get(each.variable, "unset").strip():
            told[field] = Stated(each.default, each.variable)
    return told


# Of settings that contradict each other neither is named.
@planted("settings that contradict each other are not named", Section, "made_of")
def contradiction_without_names(real: Any, self: Any, stated: Any, base: Any = None) -> Any:
    try:
        return real(self, stated, base)
    except BadSetting:
        raise BadSetting(self.name, NOT_SHOWN, "settings", "they contradict each other") from None


# Of several parts that follow a setting only the first gets its new value.
@planted_by("a setting read again reaches one part only", SettingsFollower, "__init__")
def one_follower_told(real: Any) -> Any:
    followed: list[object] = []

    def init(self: Any, settings: Any, take: Any) -> None:
        real(self, settings, (lambda _: None) if any(each is settings for each in followed) else take)
        followed.append(settings)

    return init


# After an hour without its server, a worker tries again after a day.
planted_by(
    "the pause before a try grows without end", (parts, handlers, swapping, scheduler_worker.waiting), "grown"
)(lambda _real: lambda first, _longest, failures: first * 2.0 ** min(failures - 1, 30))


# All that failed together try again together.
planted_by("all that failed together try again together", (parts, worker, intake), "drawn")(
    lambda _real: lambda pause, _chance, *, least=0.5: pause
)


# What may be tried three times is tried twice.
@planted("the last try of a retried call left out", Retrying, "__call__")
def one_try_too_few(real: Any, self: Any, work: Any, *values: Any, **named: Any) -> Any:
    fewer = structs.replace(self, tries_max=max(1, self.tries_max - 1))
    return real(fewer, work, *values, **named)


# A bug that comes together with a lost connection is tried again without end.
@planted_by("a bug beside a lost connection is retried", (parts, worker), "operational")
def bug_beside_a_lost_connection_retried(real: Any) -> Any:
    def first_of(error: BaseException) -> Operational | None:
        if isinstance(error, BaseExceptionGroup):
            return next(filter(None, map(first_of, error.exceptions)), None)
        found: Operational | None = real(error)
        return found

    return first_of


# A caller gets the end of a run that began before it called.
@planted("a caller gets the end of an earlier run", SharedRuns, "soon")
def run_under_way_shared(real: Any, self: Any) -> Any:
    last = vars(self).get("last_run")
    if last is None or last.done():
        last = self.last_run = real(self)
    return last


# A worker for many cells is not ready while one of them is down.
@planted_by("a worker waits for each of its cells", Status, "awaits")
def part_beside_awaited(real: Any) -> Any:
    def awaits(self: Any) -> Any:
        beside, self.is_beside = self.is_beside, False
        try:
            return real.fget(self)
        finally:
            self.is_beside = beside

    return property(awaits)


# A part that fails logs the same warning at each try.
@planted("each failed try is a warning", Status, "left")
def failure_told_each_time(real: Any, self: Any, problem: Any) -> None:
    real(self, problem)
    if self.failures > 1:
        parts.log.warning("part %r fails, trying again: %s", self.name, self.last_error)


# A part is stopped before the parts that still hand their work to it.
@planted_by("a part is stopped before those that need it", PartGroup, "stop")
def parts_stopped_in_reverse(_real: Any) -> Any:
    async def stop(self: Any) -> None:
        for part in reversed(self.parts):
            if not isinstance(part, Status):
                await part.stop()

    return stop


# A worker that cannot drain ends an hour later.
planted_by(
    "a worker that cannot drain ends an hour later",
    (process, running, moor.clouds.cloud),
    "run_until",
)(lambda real: lambda told, parts, _drain_s_max: real(told, parts, _HOUR_S))


# A SIGHUP does not make a server read its certificates again.
@planted_by("new certificates need a restart", http_server, "told_of_hangups")
def certificates_kept(_real: Any) -> Any:
    @contextmanager
    def told_of_hangups(_work: Any) -> Iterator[None]:
        yield

    return told_of_hangups


# systemd hears once that a worker lives, and restarts it later.
@planted("systemd hears once that a worker lives", Systemd, "alive")
def sign_of_life_not_repeated(real: Any, self: Any, now_s: float) -> None:
    if not vars(self).get("was_alive"):
        self.was_alive = True
        real(self, now_s)


# A worker whose broker is away is told to be ill, and is restarted without end.
@planted_by("a worker is restarted because its broker is away", Health, "is_well")
def failing_worker_restarted(real: Any) -> Any:
    return property(lambda self: real.fget(self) and not self.failing())


# A worker that stops still says that it is ready, and gets new requests.
@planted("a worker that stops is told to be ready", Health, "awaits")
def stopping_worker_ready(real: Any, self: Any) -> Any:
    return {} if self.is_stopping else real(self)


# Given a port alone, the page of health and metrics is open to every machine.
@planted("the health page is open to all machines", health, "read_address", harm="unauthorised")
def health_shown_to_all(real: Any, text: str, setting: str, examples: str, *, default_host: str = "") -> Any:
    return real(text, setting, examples, default_host=default_host and "0.0.0.0")  # noqa: S104 - the bug


# An instance with a line break in its name writes a log line of its own.
planted_by("a name forges a log line", TextFormatter, "format")(
    lambda real: lambda self, record: real(self, record).replace("\\n", "\n")
)


# JSON logs have no traceback of what ended a worker.
@planted("JSON logs without tracebacks", JsonFormatter, "format")
def traceback_dropped(real: Any, self: Any, record: logging.LogRecord) -> str:
    trace, record.exc_info = record.exc_info, None
    try:
        return str(real(self, record))
    finally:
        record.exc_info = trace


# Many messages of one age count as one.
planted_by("the messages of a parcel measured as one", Histogram, "observe")(
    lambda real: lambda self, seconds, _count=1, labels=(): real(self, seconds, 1, labels)
)


# A message from a machine whose clock is ahead makes the sum of all ages smaller.
@planted("a clock that is ahead makes ages negative", Histogram, "observe")
def negative_age_subtracted(real: Any, self: Any, seconds: float, count: int = 1, labels: Any = ()) -> None:
    real(self, seconds, count, labels)
    self.by_labels[labels].total_s += min(seconds, 0.0) * count


@planted_as("the values of a label are not limited")
def label_values_not_limited() -> AbstractContextManager[None]:
    """Each name that another program invents is a series of its own in Prometheus."""

    def planted(_real: Any) -> Any:
        return lambda names, values_max=0: {name: name for name in names}

    owners = (metrics, scheduler_worker.hosts, scheduler_worker.overview, scheduler_worker.requests.reading)
    return replaced_in(owners, "limited", planted)


# A worker tries the same node of a cluster first, though that one is down.
planted_by("a node of a cluster that is down tried first", HostTurns, "failed")(
    lambda _real: lambda _self, _host: None
)


@planted_as("a new password in its file needs a restart")
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


@planted_as("a time is stored a microsecond too early")
def microsecond_lost() -> AbstractContextManager[None]:
    """Some times are stored a microsecond too early."""

    def planted(_real: Any) -> Any:
        return lambda at: int(at.timestamp() * 1_000_000)

    owners = (
        *(clock, cell_conductor.store_sql, scheduler_worker.aggregates, compute_sim.wiring),
        *(ironic_sync.core.notifications, ironic_sync.store_sql),
    )
    return replaced_in(owners, "microseconds", planted)


# A time in the year 9999 is accepted, and no database can add a day to it.
@planted("a time in the year 9999 accepted", unreadable, "too_far_in")
def far_future_accepted(real: Any, envelope: Any) -> Any:
    found = real(envelope)
    return found if found is not None and not found.value.startswith("9") else None


# After one lazy commit to a file, no later one waits for the disk either: a power cut undoes what was confirmed.
@planted("after a lazy commit to a file none waits for the disk", SqliteDatabase, "writing", harm="lost")
def lazy_commits_go_on(real: Any, self: Any, *, takes_long: bool = False, is_lazy: bool = False) -> Any:
    self.was_lazy = is_lazy or getattr(self, "was_lazy", False)
    return real(self, takes_long=takes_long, is_lazy=self.was_lazy)


@planted_as("the rest of a caller's transaction is committed by the next caller", harm="lost")
def open_transaction_in_the_pool() -> AbstractContextManager[None]:
    """A session whose transaction could not be rolled back serves the next caller, who commits what is left of it."""

    def is_usable(session: Any) -> bool:
        return not (session.driver.is_closed() or session.connection.invalidated)

    return replaced(PostgresSession, "is_usable", lambda _real: property(is_usable))


# A lost session keeps its place in the pool: after a few of them nobody gets one.
@planted("lost database sessions use up the pool", PostgresDatabase, "_give_back")
async def lost_sessions_keep_their_place(real: Any, self: Any, session: Any) -> None:
    if session.is_usable:
        await real(self, session)
    else:
        await session.discard()


# PostgreSQL answers COMMIT by rolling back, since code caught an error, and the work counts as done.
@planted("work that PostgreSQL has undone counts as committed", PostgresTransaction, "_commit", harm="lost")
async def undone_commit_counts(_real: Any, self: Any) -> None:
    if self._session is not None and self._is_begun:
        await self._session.driver.execute("COMMIT")


# Each statement of a reading transaction sees another state of the database.
planted_by("a reading transaction sees several states", PostgresDatabase, "reading")(
    lambda _real: lambda self, *, takes_long=False: self.writing(takes_long=takes_long)
)


# A caller waits for a session of PostgreSQL as long as it takes.
@planted("a caller waits for a database session without end", PostgresDatabase, "_wait_until_free")
async def waits_for_the_pool_without_end(_real: Any, self: Any) -> None:
    await self._free.acquire()


# A row that another session holds is told as a database that is away.
planted_by("a locked database is told to be away", (dialects, postgresql), "transient_kind")(
    lambda real: lambda error: Unavailable if real(error) is Locked else real(error)
)


# A database without room on its disk ends its workers, instead of being waited for.
planted_by("a full disk of the database is not waited for", (dialects, postgresql), "transient_kind")(
    lambda real: (
        lambda error: None if any(each in str(error) for each in ("full", "No space")) else real(error)
    )
)


# Whatever rule of a table a row breaks, its name is told to be taken.
planted_by("any rule that a row breaks is told as a taken name", (dialects, kit.sql, trees), "is_duplicate")(
    lambda _real: lambda _error: True
)


# A worker stays with a server that has become a standby: each write fails until the worker restarts.
planted_by("a worker stays with a server that became a standby", postgresql, "is_of_a_standby")(
    lambda _real: lambda _error: False
)


# Any certificate of the authority will do for the database, whatever server it was made for.
planted_by(
    "the name in the database's certificate is not checked", statements, "client_tls", harm="unauthorised"
)(lambda real: lambda *files, **named: real(*files, **named | {"checks_name": False}))


# A database password that was changed in its file counts only after a restart.
@planted("a changed database password counts after a restart only", postgresql, "with_password_file")
def password_of_a_database_read_once(real: Any, url: Any) -> Any:
    rest, named = real(url)
    return rest, {"password": named["password"]()} if named else {}


# Rows are locked as their keys come, and not in the one order: two batches wait for each other.
@planted_by("rows are locked in the order in which a batch names them", KeyStatement, "fetch")
def rows_locked_as_named(real: Any) -> Any:
    async def fetch(self: Any, transaction: Any, keys: Any, *shared: Any) -> Any:
        if keys and isinstance(transaction, PostgresTransaction) and "$1::text" not in self.on_postgresql:
            return await transaction.fetch(self.on_postgresql, *shared, [*keys])
        return await real(self, transaction, keys, *shared)

    return fetch


# What a transaction on a file wrote before it failed is kept.
@planted("what a failed transaction wrote to a file is kept", SqliteTransaction, "roll_back", harm="lost")
async def failed_work_kept(_real: Any, self: Any) -> None:
    await self.commit()


# Processes that start together migrate one database at the same time.
planted_by("two processes migrate one database at once", migrations, "_wait_for_turn")(
    lambda _real: lambda *_: None
)


# A worker that may create no tables does not say who must migrate them.
planted_by("a worker without the right to migrate does not say so", migrations, "_check_right")(
    lambda _real: lambda *_: None
)


# A role keeps the rights on tables that it no longer has.
planted_as("a database role keeps the rights of before", harm="unauthorised")(
    lambda: _not_run("REVOKE ALL ON TABLE")
)


# Any role may still create tables beside those of the workers.
planted_as("any database role may create tables", harm="unauthorised")(
    lambda: _not_run("REVOKE CREATE ON SCHEMA")
)


def _not_run(beginning: str) -> AbstractContextManager[None]:
    def planted(real: Any) -> Any:
        def run(connection: Any, statement: str) -> None:
            if not statement.startswith(beginning):
                real(connection, statement)

        return run

    return replaced(migrations, "_run", planted)


# The error about a role has what its password can be guessed from.
@planted(
    "an error about a database role shows its password's verifier", migrations, "_run", harm="unauthorised"
)
def verifier_told(_real: Any, connection: Any, statement: str) -> None:
    try:
        connection.exec_driver_sql(statement)
    except DBAPIError as error:
        raise Failure(f"database: {statement}: {error.orig}") from None


# A trial of making roles makes them.
planted_by("a trial of database roles makes them", migrations, "_undo")(lambda _real: lambda: None)


# The part ends at the row that meets a bug, and so does the process: each that takes its place.
@planted("a bug at one row ends the part for all rows", parts.RowByRow, "each", harm="lost")
async def one_row_ends_the_part(_real: Any, _self: Any, rows: Any, work: Any, _key: Any) -> None:
    if rows := [*rows]:
        await work(rows)


# The row that has met a bug is hidden: no other process tries it, and nobody is told.
@planted("a row that meets a bug is told to nobody", FailedRows, "_met_bug", harm="lost")
async def bug_told_to_nobody(_real: Any, _self: Any, _part: Any, _row: Any, _bug: Any) -> None:
    return


# Each process tries it until its attempts are used up.
@planted("two processes that fail at a message are one", worker, "after_failure")
def two_are_one(
    real: Any,
    problem: Any,
    *,
    items: Any,
    attempts: Any,
    settings: Any,
    others_succeed: Any = True,
    failed_elsewhere: Any = False,
) -> Any:
    return real(problem, items=items, attempts=attempts, settings=settings, others_succeed=others_succeed)
