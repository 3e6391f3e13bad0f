"""Planted bugs in the scheduler's store: pages, filters, leases, notes, and rows that must not be written over."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from bus.workers.handlers import OutboxKey
from engine.flavors import InstanceId
from engine.hosts import cell_and_name
from kit.clock import EPOCH
from scheduler_worker.store_sql import SchedulerStore, SchedulerTransaction, finding, rows
from scheduler_worker.tables import cells, waking
from tests.planted.replacing import planted, planted_by

_MANY = 1_000_000
_LAST = InstanceId(UUID(int=2**128 - 1))


# A page of instances begins with the instance that it should begin after.
@planted("a page of instances repeats the last row of the page before", SchedulerStore, "instance_page")
async def page_begins_with_its_cursor(real: Any, self: Any, query: Any) -> Any:
    if query.after is not None and query.after.int:
        query = structs.replace(query, after=InstanceId(UUID(int=query.after.int - 1)))
    return await real(self, query)


# web-10 comes before web-2.
planted_by("names sort digit by digit", (finding, rows), "name_order")(
    lambda _real: lambda name: name.casefold()
)


# A page that reads as many rows as it may ends the list, although others follow.
@planted("a short page of instances is the last one", SchedulerStore, "instance_page")
async def short_page_is_last(real: Any, self: Any, query: Any) -> Any:
    page = await real(self, query)
    if page is None or len(page.rows) >= query.limit:
        return page
    return structs.replace(page, next=None)


# `c1/h1` finds the instances on the hosts of this name in all cells.
@planted(
    "a host's instances are listed with those of its namesakes in other cells",
    SchedulerStore,
    "instance_page",
)
async def cell_of_a_host_ignored(real: Any, self: Any, query: Any) -> Any:
    name = cell_and_name(query.host)[1] if query.host else ""
    return await real(self, structs.replace(query, host=name))


# Of many instances past their deadline, the latest are found.
@planted("instances that are overdue for longest end last", SchedulerStore, "overdue")
async def overdue_longest_last(real: Any, self: Any, now: datetime, limit: int) -> Any:
    return (await real(self, now, _MANY))[: -limit - 1 : -1]


# One call deletes all that is old, in one transaction.
planted_by("old requests are pruned all at once", SchedulerStore, "prune")(
    lambda real: lambda self, ended_before, limit: real(self, ended_before, max(limit, _MANY))
)


# A scheduler tries what waits although another one has the lease to do so.
@planted(
    "two schedulers have the lease to try what waits", SchedulerTransaction, "lease_waking", harm="doubled"
)
async def held_lease_taken(real: Any, self: Any, *lease: Any, **number: Any) -> None:
    await real(self, *lease, **number)


# A scheduler that stops ends the lease of another one.
@planted("a scheduler ends the lease of another", SchedulerTransaction, "release_waking", harm="doubled")
async def foreign_lease_released(real: Any, self: Any, holder: UUID) -> None:
    await real(self, holder)
    await self._transaction.run(_execute, sa.delete(waking))


# A project deletes a server group of another project.
planted_by(
    "a project deletes the server group of another", SchedulerTransaction, "delete_group", harm="unauthorised"
)(lambda real: lambda self, group, _project, at: real(self, group, "", at))


# The order to create a server group, delivered again after its deletion, is answered as if it were there.
@planted("a deleted server group is told to exist", SchedulerTransaction, "create_group")
async def id_of_a_deleted_group_given_again(real: Any, self: Any, group: Any) -> Any:
    return await real(self, group) or group


# A cell's event counts as written if its row does not take it at once.
@planted(
    "a cell's event that does not fit its row is dropped", SchedulerTransaction, "apply_events", harm="lost"
)
async def event_that_does_not_fit_dropped(real: Any, self: Any, events: Any) -> int:
    await real(self, events)
    return len(events)


# The order about an application that arrives last counts, and not the one that was sent last.
planted_by("an older order about an application wins", SchedulerTransaction, "set_application")(
    lambda real: lambda self, name, _sent_at, application: real(self, name, EPOCH, application)
)


# A scheduler that is behind writes that a cell was last heard long ago.
@planted("a scheduler that is behind makes a cell look silent", SchedulerTransaction, "save_cells")
async def older_word_of_a_cell_wins(real: Any, self: Any, heard: Any) -> None:
    await self._transaction.run(
        _execute, sa.delete(cells).where(cells.c.name.in_([each.name for each in heard]))
    )
    await real(self, heard)


# Each further page of unsent messages begins one note too late.
@planted("unsent messages left out between two pages", SchedulerStore, "unconfirmed", harm="lost")
async def first_note_of_a_page_left_out(
    real: Any, self: Any, before: datetime, after: Any, limit: int
) -> Any:
    return await real(self, before, None if after is None else OutboxKey(after + 1), limit)


# With several notes, the messages of one are confirmed in place of those of another.
@planted("the messages of other notes confirmed", SchedulerTransaction, "note", harm="lost")
async def notes_named_in_another_order(real: Any, self: Any, groups: Any) -> Any:
    return (await real(self, groups))[::-1]


# An instance that is there already counts as taken over.
@planted("an instance that could not be taken over is told to be", SchedulerTransaction, "adopt", harm="lost")
async def refused_adoption_not_told(real: Any, self: Any, rows: Any) -> Any:
    await real(self, rows)
    return ()


# A scheduler does not read a host again that was written at the very time from which it looks.
planted_by(
    "a host that changes at a scheduler's last look stays unread",
    SchedulerStore,
    "host_versions",
    harm="lost",
)(lambda real: lambda self, changed_since: real(self, changed_since + timedelta(microseconds=1)))


# Moves that were ordered together are not all shown, if a page ends among them.
@planted("moves of one moment missing on the next page", SchedulerStore, "changes")
async def moves_of_one_moment_left_out(real: Any, self: Any, query: Any) -> Any:
    if query.behind is not None:
        query = structs.replace(query, behind=structs.replace(query.behind, instance=_LAST))
    return await real(self, query)


# An instance that has got a host, or has ended, goes on waiting for one.
@planted("an instance waits on after it has a host", SchedulerTransaction, "unlist", harm="lost")
async def what_has_waited_stays_listed(_real: Any, _self: Any, _instances: Any) -> None:
    return


def _execute(connection: Connection, statement: sa.Executable) -> None:
    connection.execute(statement)
