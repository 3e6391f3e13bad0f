"""Planted bugs in the databases of cells: conductors, simulated computes and the daemons of bare metal."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import structs

from cell_conductor import store_sql
from cell_conductor.core.rows import CellHost, choices_of
from cell_conductor.store_sql import ConductorTransaction, RowCache
from cell_conductor.tables import cell_hosts, cell_instances
from compute_sim.handlers import ComputeStore
from compute_sim.store_sql import SqlComputeStore
from engine.flavors import InstanceId
from ironic_sync import store_sql as ironic_sql
from ironic_sync.store_sql import IronicStore, IronicTransaction, SavedRows
from ironic_sync.tables import ironic_daemons
from kit.sql import among
from tests.planted.replacing import planted, planted_by

_MANY = 1_000_000
_LAST = InstanceId(UUID(int=2**128 - 1))
_NEVER = datetime(8999, 1, 1, tzinfo=UTC)


# A look at the outbox also finds the messages that are under way.
planted_by("messages that are under way sent again", store_sql, "read_notes", harm="doubled")(
    lambda real: lambda connection, cell, _before_us, *page: real(connection, cell, None, *page)
)


# A conductor takes the mode of a host in another cell for one of its own.
@planted("the modes of another cell's hosts obeyed", store_sql, "read_hosts", harm="unauthorised")
def hosts_of_other_cells_read(_real: Any, connection: Any, _cell: str) -> list[CellHost]:
    return [
        msgspec.json.decode(body, type=CellHost) for body in connection.scalars(sa.select(cell_hosts.c.body))
    ]


# Of the notes that are confirmed together only one is deleted: the others are said again, which has no effect.
planted_by("of confirmed batches only the first is cleared", ConductorTransaction, "clear")(
    lambda real: lambda self, said: real(self, [*said][:1])
)


# The conductor that sent a message goes on to take it for unconfirmed.
planted_by("a conductor sends on what was confirmed", RowCache, "confirmed", harm="lost")(
    lambda _real: lambda _self, _numbers: None
)


# All rows that are due are taken in one transaction.
planted_by("all due rows of a cell locked at once", ConductorTransaction, "take_due")(
    lambda real: lambda self, now, limit: real(self, now, max(limit, _MANY))
)


# Of the rows that are due at one moment, those behind the end of a page are not read.
@planted("rows due at one moment missing on the next page", store_sql, "read_waiting", harm="lost")
def rows_due_together_left_out(
    real: Any, connection: Any, cell: str, until_us: int, after: Any, limit: int
) -> Any:
    return real(connection, cell, until_us, None if after is None else (after[0], _LAST), limit)


# A host that has left its cell is waited for without end.
planted_by("hosts that have left a cell kept", store_sql, "read_heard_hosts")(
    lambda real: lambda connection, cell, _before_us: real(connection, cell, 0)
)


# Of two conductors that meet a new host at once, one believes that its mode was written.
planted_by("the mode that another conductor has set lost", store_sql, "save_host", harm="lost")(
    lambda real: lambda *host: bool(real(*host)) or True
)


# Conductors see that a host is set for the first time, and miss all later modes.
@planted("the second mode of a host not heard by other conductors", store_sql, "count_writes", harm="lost")
def second_mode_not_counted(_real: Any, connection: Any, cell: str) -> int:
    query = sa.select(sa.func.count()).where(cell_hosts.c.cell == cell)
    return int(connection.scalar(query))


# A conductor that takes over a row tries the alternates again that the one before has tried.
@planted("spent alternates tried again after a takeover", store_sql, "assemble_row")
def spent_alternates_back(real: Any, body: Any, order: Any) -> Any:
    return structs.replace(real(body, order), alternates=choices_of(order)[1:])


# A cell that forgets an instance deletes its row in the cell to which it was adopted, too.
@planted("an instance forgotten in every cell of its database", store_sql, "forget", harm="destroyed")
def forgotten_in_all_cells(_real: Any, connection: Any, _cell: str, instances: Any) -> None:
    connection.execute(sa.delete(cell_instances).where(among(connection, cell_instances.c.id, instances)))


# A simulated compute has its old attempts again after a restart.
@planted_by("the old attempts of a compute back after a restart", SqlComputeStore, "forget")
def forgotten_attempts_back(_real: Any) -> Any:
    async def forget(self: Any, over_before_s: float) -> Any:
        return await ComputeStore.forget(self, over_before_s)

    return forget


# A simulated compute that is killed while its answer is under way never gives it again.
@planted("an answer lost by a compute that is killed", SqlComputeStore, "remember", harm="lost")
async def answer_under_way_counts_as_given(_real: Any, self: Any, attempts: Any) -> None:
    await self.save([structs.replace(each, ends_s=None) for each in attempts])


# A daemon whose lease is over believes that it goes on.
@planted("a daemon goes on without its lease", IronicStore, "renew", harm="doubled")
async def lost_lease_renewed(real: Any, self: Any, *lease: Any) -> bool:
    return bool(await real(self, *lease)) or True


# A daemon that stops late takes the lease of the one that was started in its place.
@planted("a daemon that stops removes its successor", ironic_sql, "leave", harm="doubled")
def successor_made_to_leave(_real: Any, connection: Any, name: str, _incarnation: str) -> None:
    connection.execute(sa.delete(ironic_daemons).where(ironic_daemons.c.name == name))


# A daemon believes that it wrote a node's row which another one wrote first.
@planted("a daemon's overtaken write counts as written", IronicTransaction, "save", harm="doubled")
async def overtaken_write_counts(real: Any, self: Any, rows: Any) -> SavedRows:
    await real(self, rows)
    return SavedRows(tuple(structs.replace(row, version=row.version + 1) for row in rows))


# A node waits until the time that a daemon with a wrong clock wrote.
planted_by("a node waits for a wrong clock", IronicStore, "due")(
    lambda real: lambda self, owner, now, _beyond, limit: real(self, owner, now, _NEVER, limit)
)


# Asked for the nodes of no daemons, the store answers with all nodes.
@planted("the nodes of no daemon are all nodes", IronicStore, "owners")
async def no_names_are_all_names(real: Any, self: Any, names: Any = None) -> Any:
    return await real(self, names or None)
