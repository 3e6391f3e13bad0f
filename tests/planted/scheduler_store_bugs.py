"""Planted bugs in the scheduler's store: pages, filters, leases, notes, and rows that must not be written over."""

from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from bus.workers.handling import OutboxKey
from engine.flavors import InstanceId
from engine.hosts import cell_and_name
from kit.times import EPOCH
from scheduler_worker.store_sql import SqlSchedulerStore
from scheduler_worker.store_sql.rows import SqlSchedulerTransaction
from scheduler_worker.tables import cells, waking
from tests.planted.replacing import PlantedBug, replaced

_MANY = 1_000_000
_LAST = InstanceId(UUID(int=2**128 - 1))


def page_begins_with_its_cursor() -> AbstractContextManager[None]:
    """A page of instances begins with the instance that it should begin after."""

    def planted(real: Any) -> Any:
        async def instances(self: Any, query: Any) -> Any:
            if query.after is not None and query.after.int:
                query = structs.replace(query, after=InstanceId(UUID(int=query.after.int - 1)))
            return await real(self, query)

        return instances

    return replaced(SqlSchedulerStore, "instances", planted)


def cell_of_a_host_ignored() -> AbstractContextManager[None]:
    """`c1/h1` finds the instances on the hosts of this name in all cells."""

    def planted(real: Any) -> Any:
        async def instances(self: Any, query: Any) -> Any:
            name = cell_and_name(query.host)[1] if query.host else ""
            return await real(self, structs.replace(query, host=name))

        return instances

    return replaced(SqlSchedulerStore, "instances", planted)


def overdue_longest_last() -> AbstractContextManager[None]:
    """Of many instances past their deadline, the latest are found."""

    def planted(real: Any) -> Any:
        async def overdue(self: Any, now: datetime, limit: int) -> Any:
            return (await real(self, now, _MANY))[: -limit - 1 : -1]

        return overdue

    return replaced(SqlSchedulerStore, "overdue", planted)


def limit_of_pruning_ignored() -> AbstractContextManager[None]:
    """One call deletes all that is old, in one transaction."""

    def planted(real: Any) -> Any:
        return lambda self, ended_before, limit: real(self, ended_before, max(limit, _MANY))

    return replaced(SqlSchedulerStore, "prune", planted)


def held_lease_taken() -> AbstractContextManager[None]:
    """A scheduler tries what waits although another one has the lease to do so."""

    def planted(real: Any) -> Any:
        async def lease_waking(self: Any, *lease: Any) -> None:
            await real(self, *lease)

        return lease_waking

    return replaced(SqlSchedulerTransaction, "lease_waking", planted)


def foreign_lease_released() -> AbstractContextManager[None]:
    """A scheduler that stops ends the lease of another one."""

    def planted(real: Any) -> Any:
        async def release_waking(self: Any, holder: UUID) -> None:
            await real(self, holder)
            await self._transaction.run(_execute, sa.delete(waking))

        return release_waking

    return replaced(SqlSchedulerTransaction, "release_waking", planted)


def foreign_group_deleted() -> AbstractContextManager[None]:
    """A project deletes a server group of another project."""

    def planted(real: Any) -> Any:
        return lambda self, group, _project, at: real(self, group, "", at)

    return replaced(SqlSchedulerTransaction, "delete_group", planted)


def id_of_a_deleted_group_given_again() -> AbstractContextManager[None]:
    """The order to create a server group, delivered again after its deletion, is answered as if it were there."""

    def planted(real: Any) -> Any:
        async def create_group(self: Any, group: Any) -> Any:
            return await real(self, group) or group

        return create_group

    return replaced(SqlSchedulerTransaction, "create_group", planted)


def event_that_does_not_fit_dropped() -> AbstractContextManager[None]:
    """A cell's event counts as written if its row does not take it at once."""

    def planted(real: Any) -> Any:
        async def apply_events(self: Any, events: Any) -> int:
            await real(self, events)
            return len(events)

        return apply_events

    return replaced(SqlSchedulerTransaction, "apply_events", planted)


def older_application_order_wins() -> AbstractContextManager[None]:
    """Of two orders about an application the one that arrives last counts, and not the one that was sent last."""

    def planted(real: Any) -> Any:
        return lambda self, name, _sent_at, application: real(self, name, EPOCH, application)

    return replaced(SqlSchedulerTransaction, "set_application", planted)


def older_word_of_a_cell_wins() -> AbstractContextManager[None]:
    """A scheduler that is behind writes that a cell was last heard long ago."""

    def planted(real: Any) -> Any:
        async def save_cells(self: Any, heard: Any) -> None:
            await self._transaction.run(
                _execute, sa.delete(cells).where(cells.c.name.in_([each.name for each in heard]))
            )
            await real(self, heard)

        return save_cells

    return replaced(SqlSchedulerTransaction, "save_cells", planted)


def first_note_of_a_page_left_out() -> AbstractContextManager[None]:
    """Each further page of unsent messages begins one note too late."""

    def planted(real: Any) -> Any:
        async def unconfirmed(self: Any, before: datetime, after: Any, limit: int) -> Any:
            return await real(self, before, None if after is None else OutboxKey(after + 1), limit)

        return unconfirmed

    return replaced(SqlSchedulerStore, "unconfirmed", planted)


def notes_named_in_another_order() -> AbstractContextManager[None]:
    """With several notes, the messages of one are confirmed in place of those of another."""

    def planted(real: Any) -> Any:
        async def note(self: Any, groups: Any) -> Any:
            return (await real(self, groups))[::-1]

        return note

    return replaced(SqlSchedulerTransaction, "note", planted)


def refused_adoption_not_told() -> AbstractContextManager[None]:
    """An instance that is there already counts as taken over."""

    def planted(real: Any) -> Any:
        async def adopt(self: Any, rows: Any) -> Any:
            await real(self, rows)
            return ()

        return adopt

    return replaced(SqlSchedulerTransaction, "adopt", planted)


def host_changed_at_the_last_look_left_out() -> AbstractContextManager[None]:
    """A scheduler does not read a host again that was written at the very time from which it looks."""

    def planted(real: Any) -> Any:
        return lambda self, changed_since: real(self, changed_since + timedelta(microseconds=1))

    return replaced(SqlSchedulerStore, "host_versions", planted)


def moves_of_one_moment_left_out() -> AbstractContextManager[None]:
    """Moves that were ordered together are not all shown, if a page ends among them."""

    def planted(real: Any) -> Any:
        async def changes(self: Any, query: Any) -> Any:
            if query.behind is not None:
                query = structs.replace(query, behind=structs.replace(query.behind, instance=_LAST))
            return await real(self, query)

        return changes

    return replaced(SqlSchedulerStore, "changes", planted)


def what_has_waited_stays_listed() -> AbstractContextManager[None]:
    """An instance that has got a host, or has ended, goes on waiting for one."""

    def planted(_real: Any) -> Any:
        async def unlist(_self: Any, _instances: Any) -> None:
            return

        return unlist

    return replaced(SqlSchedulerTransaction, "unlist", planted)


def _execute(connection: Connection, statement: sa.Executable) -> None:
    connection.execute(statement)


BUGS: dict[str, PlantedBug] = {
    "a page of instances repeats the last row of the page before": page_begins_with_its_cursor,
    "a host's instances are listed with those of its namesakes in other cells": cell_of_a_host_ignored,
    "instances that are overdue for longest end last": overdue_longest_last,
    "old requests are pruned all at once": limit_of_pruning_ignored,
    "two schedulers have the lease to try what waits": held_lease_taken,
    "a scheduler ends the lease of another": foreign_lease_released,
    "a project deletes the server group of another": foreign_group_deleted,
    "a deleted server group is told to exist": id_of_a_deleted_group_given_again,
    "a cell's event that does not fit its row is dropped": event_that_does_not_fit_dropped,
    "an older order about an application wins": older_application_order_wins,
    "a scheduler that is behind makes a cell look silent": older_word_of_a_cell_wins,
    "unsent messages left out between two pages": first_note_of_a_page_left_out,
    "the messages of other notes confirmed": notes_named_in_another_order,
    "an instance that could not be taken over is told to be": refused_adoption_not_told,
    "a host that changes at a scheduler's last look stays unread": host_changed_at_the_last_look_left_out,
    "moves of one moment missing on the next page": moves_of_one_moment_left_out,
    "an instance waits on after it has a host": what_has_waited_stays_listed,
}
