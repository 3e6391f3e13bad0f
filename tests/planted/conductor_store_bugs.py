"""Planted bugs in the databases of cells: conductors, simulated computes and the daemons of bare metal."""

from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import structs

from cell_conductor import store_sql
from cell_conductor.core.rows import CellHost, choices_of
from cell_conductor.store_sql import RowCache, SqlConductorTransaction
from cell_conductor.tables import cell_hosts, cell_instances
from compute_sim.handlers import ComputeStore
from compute_sim.store_sql import SqlComputeStore
from engine.flavors import InstanceId
from ironic_sync import store_sql as ironic_sql
from ironic_sync.store import SavedRows
from ironic_sync.store_sql import SqlIronicStore, SqlIronicTransaction
from ironic_sync.tables import ironic_daemons
from kit.sql import among
from tests.planted.replacing import PlantedBug, replaced

_MANY = 1_000_000
_LAST = InstanceId(UUID(int=2**128 - 1))
_NEVER = datetime(8999, 1, 1, tzinfo=UTC)


def just_sent_messages_sent_again() -> AbstractContextManager[None]:
    """A look at the outbox also finds the messages that are under way."""

    def planted(real: Any) -> Any:
        return lambda connection, cell, _before_us, *page: real(connection, cell, None, *page)

    return replaced(store_sql, "read_notes", planted)


def hosts_of_other_cells_read() -> AbstractContextManager[None]:
    """A conductor takes the mode of a host in another cell for one of its own."""

    def planted(_real: Any) -> Any:
        def read_hosts(connection: Any, _cell: str) -> list[CellHost]:
            return [
                msgspec.json.decode(body, type=CellHost)
                for body in connection.scalars(sa.select(cell_hosts.c.body))
            ]

        return read_hosts

    return replaced(store_sql, "read_hosts", planted)


def only_one_note_confirmed() -> AbstractContextManager[None]:
    """Of the notes that are confirmed together only one is deleted."""

    def planted(real: Any) -> Any:
        return lambda self, said: real(self, [*said][:1])

    return replaced(SqlConductorTransaction, "clear", planted)


def confirmed_messages_kept_in_memory() -> AbstractContextManager[None]:
    """The conductor that sent a message goes on to take it for unconfirmed."""
    return replaced(RowCache, "confirmed", lambda _real: lambda _self, _numbers: None)


def limit_of_due_rows_ignored() -> AbstractContextManager[None]:
    """All rows that are due are taken in one transaction."""

    def planted(real: Any) -> Any:
        return lambda self, now, limit: real(self, now, max(limit, _MANY))

    return replaced(SqlConductorTransaction, "take_due", planted)


def rows_due_together_left_out() -> AbstractContextManager[None]:
    """Of the rows that are due at one moment, those behind the end of a page are not read."""

    def planted(real: Any) -> Any:
        def read_waiting(connection: Any, cell: str, until_us: int, after: Any, limit: int) -> Any:
            return real(connection, cell, until_us, None if after is None else (after[0], _LAST), limit)

        return read_waiting

    return replaced(store_sql, "read_waiting", planted)


def hosts_that_left_kept() -> AbstractContextManager[None]:
    """A host that has left its cell is waited for without end."""

    def planted(real: Any) -> Any:
        return lambda connection, cell, _before_us: real(connection, cell, 0)

    return replaced(store_sql, "read_heard_hosts", planted)


def mode_of_another_conductor_lost() -> AbstractContextManager[None]:
    """Of two conductors that meet a new host at once, one believes that its mode was written."""

    def planted(real: Any) -> Any:
        return lambda *host: bool(real(*host)) or True

    return replaced(store_sql, "save_host", planted)


def second_mode_not_counted() -> AbstractContextManager[None]:
    """Conductors see that a host is set for the first time, and miss all later modes."""

    def planted(_real: Any) -> Any:
        def count_writes(connection: Any, cell: str) -> int:
            query = sa.select(sa.func.count()).where(cell_hosts.c.cell == cell)
            return int(connection.scalar(query))

        return count_writes

    return replaced(store_sql, "count_writes", planted)


def spent_alternates_back() -> AbstractContextManager[None]:
    """A conductor that takes over a row tries the alternates again that the one before has tried."""

    def planted(real: Any) -> Any:
        def assemble_row(body: Any, order: Any) -> Any:
            return structs.replace(real(body, order), alternates=choices_of(order)[1:])

        return assemble_row

    return replaced(store_sql, "assemble_row", planted)


def forgotten_in_all_cells() -> AbstractContextManager[None]:
    """A cell that forgets an instance deletes its row in the cell to which it was adopted, too."""

    def planted(_real: Any) -> Any:
        def forget(connection: Any, _cell: str, instances: Any) -> None:
            connection.execute(
                sa.delete(cell_instances).where(among(connection, cell_instances.c.id, instances))
            )

        return forget

    return replaced(store_sql, "forget", planted)


def forgotten_attempts_back() -> AbstractContextManager[None]:
    """A simulated compute has its old attempts again after a restart."""

    def planted(_real: Any) -> Any:
        async def forget(self: Any, over_before_s: float) -> Any:
            return await ComputeStore.forget(self, over_before_s)

        return forget

    return replaced(SqlComputeStore, "forget", planted)


def answer_under_way_counts_as_given() -> AbstractContextManager[None]:
    """A simulated compute that is killed while its answer is under way never gives it again."""

    def planted(_real: Any) -> Any:
        async def remember(self: Any, attempts: Any) -> None:
            await self.save([structs.replace(each, due_s=None) for each in attempts])

        return remember

    return replaced(SqlComputeStore, "remember", planted)


def lost_lease_renewed() -> AbstractContextManager[None]:
    """A daemon whose lease is over believes that it goes on."""

    def planted(real: Any) -> Any:
        async def renew(self: Any, *lease: Any) -> bool:
            return bool(await real(self, *lease)) or True

        return renew

    return replaced(SqlIronicStore, "renew", planted)


def successor_made_to_leave() -> AbstractContextManager[None]:
    """A daemon that stops late takes the lease of the one that was started in its place."""

    def planted(_real: Any) -> Any:
        def leave(connection: Any, name: str, _incarnation: str) -> None:
            connection.execute(sa.delete(ironic_daemons).where(ironic_daemons.c.name == name))

        return leave

    return replaced(ironic_sql, "leave", planted)


def overtaken_write_counts() -> AbstractContextManager[None]:
    """A daemon believes that it wrote a node's row which another one wrote first."""

    def planted(real: Any) -> Any:
        async def save(self: Any, rows: Any) -> SavedRows:
            await real(self, rows)
            return SavedRows(tuple(structs.replace(row, version=row.version + 1) for row in rows))

        return save

    return replaced(SqlIronicTransaction, "save", planted)


def wrong_clock_obeyed() -> AbstractContextManager[None]:
    """A node waits until the time that a daemon with a wrong clock wrote."""

    def planted(real: Any) -> Any:
        return lambda self, owner, now, _beyond, limit: real(self, owner, now, _NEVER, limit)

    return replaced(SqlIronicStore, "due", planted)


def no_names_are_all_names() -> AbstractContextManager[None]:
    """Asked for the nodes of no daemons, the store answers with all nodes."""

    def planted(real: Any) -> Any:
        async def owners(self: Any, names: Any = None) -> Any:
            return await real(self, names or None)

        return owners

    return replaced(SqlIronicStore, "owners", planted)


BUGS: dict[str, PlantedBug] = {
    "messages that are under way sent again": just_sent_messages_sent_again,
    "the modes of another cell's hosts obeyed": hosts_of_other_cells_read,
    "of confirmed batches only the first is cleared": only_one_note_confirmed,
    "a conductor sends on what was confirmed": confirmed_messages_kept_in_memory,
    "all due rows of a cell locked at once": limit_of_due_rows_ignored,
    "rows due at one moment missing on the next page": rows_due_together_left_out,
    "hosts that have left a cell kept": hosts_that_left_kept,
    "the mode that another conductor has set lost": mode_of_another_conductor_lost,
    "the second mode of a host not heard by other conductors": second_mode_not_counted,
    "spent alternates tried again after a takeover": spent_alternates_back,
    "an instance forgotten in every cell of its database": forgotten_in_all_cells,
    "the old attempts of a compute back after a restart": forgotten_attempts_back,
    "an answer lost by a compute that is killed": answer_under_way_counts_as_given,
    "a daemon goes on without its lease": lost_lease_renewed,
    "a daemon that stops removes its successor": successor_made_to_leave,
    "a daemon's overtaken write counts as written": overtaken_write_counts,
    "a node waits for a wrong clock": wrong_clock_obeyed,
    "the nodes of no daemon are all nodes": no_names_are_all_names,
}
