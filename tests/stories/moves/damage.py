"""Damage to the tables of a running cloud, by direct SQL: what an operator's slip, a lost disk or a bug could leave behind.

Each damage harms one instance, or adds a row of its own, and says which faults an audit must find. `DAMAGES` can be mended. `IN_DOUBT`
cannot: to follow the cell's row would destroy an instance, or free its share.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import sqlalchemy as sa
from msgspec import Struct, structs
from sqlalchemy import Connection

from cell_conductor.core.rows import Cleanup, HeldClaim, Instance
from cell_conductor.store_sql import assemble_row, decode_body, decode_order, encode_body
from cell_conductor.tables import cell_instances
from engine.flavors import InstanceId
from engine.inventories import ConsumerId
from kit.sql import open_database, write_once
from moor.client.books import instance_rules, rules
from placement_worker.store_sql.rows import decode_held, encode_amounts
from placement_worker.tables import change_log, consumers, providers
from scheduler_worker.tables import instances as api_rows
from tests.narrowing import present
from tests.running import closing

Change = Callable[[Instance], Instance]
# A consumer that some damages add.
ADDED = UUID(int=0xADDED)


class Damage(Struct, frozen=True):
    """It is done to an instance in this state. `kinds` of faults are found about the instance, or about the added consumer."""

    do: Callable[[Connection, InstanceId], object]
    kinds: frozenset[str]
    adds: bool = False
    state: str = "active"


async def damage(url: str, done: Iterable[tuple[Damage, InstanceId]]) -> None:
    async with closing(open_database(url)) as (database,):
        for each, instance in done:
            await write_once(database, each.do, instance)


def change_consumer(connection: Connection, instance: InstanceId, **values: object) -> None:
    changed = connection.execute(sa.update(consumers).where(consumers.c.uuid == instance).values(**values))
    assert changed.rowcount == 1, f"{instance} has no row in placement"


def change_row(connection: Connection, instance: InstanceId, **values: object) -> None:
    changed = connection.execute(sa.update(api_rows).where(api_rows.c.id == instance).values(**values))
    assert changed.rowcount == 1, f"{instance} has no row at API level"


def more_of(connection: Connection, instance: InstanceId, *, of_pool: bool) -> None:
    """It holds ten more of what a NUMA node gives it, or of what the pool does."""
    held = decode_held(
        connection.scalar(sa.select(consumers.c.held).where(consumers.c.uuid == instance)) or ""
    )
    names = {row.id: row.name for row in connection.execute(sa.select(providers.c.id, providers.c.name))}
    number = next(each for each in held if ("nfs" in names[each]) == of_pool)
    more = {class_id: amount + 10 for class_id, amount in held[number].items()}
    change_consumer(connection, instance, held=encode_amounts({**held, number: more}))


def _add_consumer(connection: Connection, instance: InstanceId, kind: str, uuid: UUID) -> None:
    """Another consumer that holds the same as this instance."""
    columns = [each for each in consumers.c if each.name not in ("id", "uuid", "type", "server_group")]
    same = sa.select(sa.literal(uuid, consumers.c.uuid.type), sa.literal(kind), *columns).where(
        consumers.c.uuid == instance
    )
    connection.execute(
        sa.insert(consumers).from_select(["uuid", "type", *[each.name for each in columns]], same)
    )


def _other_host(connection: Connection, instance: InstanceId) -> None:
    """Placement has it on another host of its cell, and what it holds there."""
    host = connection.scalar(sa.select(consumers.c.host).where(consumers.c.uuid == instance))
    other = present(
        connection.execute(
            sa.select(consumers.c.host, consumers.c.held).where(
                consumers.c.host != host, consumers.c.held != "{}"
            )
        ).first()
    )
    change_consumer(connection, instance, host=other.host, held=other.held)


def _other_cell(connection: Connection, instance: InstanceId) -> None:
    cell = connection.scalar(sa.select(api_rows.c.cell).where(api_rows.c.id == instance))
    change_row(connection, instance, cell="c2" if cell == "c1" else "c1")


def migration_of(connection: Connection, instance: InstanceId) -> ConsumerId:
    row = _row(connection, instance)
    return present(present(row.moving).heir)


def _row(connection: Connection, instance: InstanceId) -> Instance:
    stored = connection.execute(sa.select(cell_instances).where(cell_instances.c.id == instance)).one()
    return assemble_row(decode_body(stored.body), decode_order(stored.placed))


def _change_cell(connection: Connection, instance: InstanceId, change: Change) -> None:
    row = change(_row(connection, instance))
    connection.execute(
        sa.update(cell_instances)
        .where(cell_instances.c.id == instance)
        .values(state=row.state, body=encode_body(row)),
    )


def _delete(connection: Connection, *ids: UUID) -> None:
    connection.execute(sa.delete(consumers).where(consumers.c.uuid.in_(ids)))


def _delete_rows(connection: Connection, instance: InstanceId, *, of_cell: bool, of_api: bool) -> None:
    if of_cell:
        connection.execute(sa.delete(cell_instances).where(cell_instances.c.id == instance))
    if of_api:
        connection.execute(sa.delete(api_rows).where(api_rows.c.id == instance))


def _delete_all_rows(connection: Connection, instance: InstanceId) -> None:
    """Its claim may not look young: then its row might still come."""
    _delete_rows(connection, instance, of_cell=True, of_api=True)
    connection.execute(sa.update(change_log).values(at=datetime.now(UTC) - timedelta(hours=1)))


def _holds_as_another(connection: Connection, instance: InstanceId) -> None:
    other = present(
        connection.execute(
            sa.select(consumers.c.host, consumers.c.held).where(consumers.c.held != "{}")
        ).first()
    )
    change_consumer(connection, instance, host=other.host, held=other.held, ended_at=None)


def _gets_a_place(connection: Connection, instance: InstanceId) -> None:
    same = sa.select(consumers.c.host, consumers.c.server_group).where(consumers.c.uuid == instance)
    own = connection.execute(same).one()
    change_consumer(
        connection, migration_of(connection, instance), host=own.host, server_group=own.server_group
    )


def _on_another_host(row: Instance) -> Instance:
    return structs.replace(row, host=present(row.order).alternates[0])


def _before_its_move(row: Instance) -> Instance:
    return structs.replace(
        row, state="active", host=present(row.moving).source, attempt=1, moving=None, move=None
    )


def _cleans_up_nothing(row: Instance) -> Instance:
    """It waits for a host that has nothing of it, to free a claim that is not there."""
    assert row.order is not None
    held = HeldClaim(ConsumerId(UUID(int=4242)), 1)
    cleanup = Cleanup(attempt=0, host=row.order.alternates[0].share.host, release=(held,))
    return structs.replace(row, cleanups=(cleanup,))


def _of_cell(change: Change, *kinds: str, state: str = "active") -> Damage:
    return Damage(
        lambda connection, id_: _change_cell(connection, id_, change), frozenset(kinds), state=state
    )


def _of_migration(*kinds: str, **values: object) -> Damage:
    return Damage(
        lambda connection, id_: change_consumer(connection, migration_of(connection, id_), **values),
        frozenset(kinds),
        state="moved",
    )


def _of_consumer(*kinds: str, state: str = "active", **values: object) -> Damage:
    return Damage(
        lambda connection, id_: change_consumer(connection, id_, **values), frozenset(kinds), state=state
    )


def _of_row(*kinds: str, at: str = "active", **values: object) -> Damage:
    return Damage(lambda connection, id_: change_row(connection, id_, **values), frozenset(kinds), state=at)


DAMAGES: Mapping[str, Damage] = {
    "a claim of no instance": Damage(
        lambda connection, id_: _add_consumer(connection, id_, "INSTANCE", UUID(int=ADDED.int + 1)),
        frozenset({instance_rules.ORPHAN}),
        adds=True,
    ),
    "a migration of no move": Damage(
        lambda connection, id_: _add_consumer(connection, id_, "MIGRATION", UUID(int=ADDED.int + 2)),
        frozenset({rules.LEAK}),
        adds=True,
    ),
    "a cleanup of no host": Damage(
        lambda connection, id_: _add_consumer(connection, id_, "CLEANUP", UUID(int=ADDED.int + 3)),
        frozenset({rules.LEAK}),
        adds=True,
    ),
    "its claim is gone": Damage(_delete, frozenset({instance_rules.MISSING})),
    "its claim has ended": _of_consumer(
        instance_rules.MISSING, ended_at=sa.func.current_timestamp(), held="{}"
    ),
    "more of a NUMA node": Damage(
        lambda connection, id_: more_of(connection, id_, of_pool=False), frozenset({instance_rules.AMOUNTS})
    ),
    "more of the pool": Damage(
        lambda connection, id_: more_of(connection, id_, of_pool=True), frozenset({instance_rules.AMOUNTS})
    ),
    "another host in placement": Damage(_other_host, frozenset({instance_rules.HOST})),
    "another type": _of_consumer(instance_rules.TYPE, type="VOLUME"),
    "another project and user": _of_consumer(
        instance_rules.PROJECT, instance_rules.USER, project_id="bank", user_id="bob"
    ),
    "no group": _of_consumer(instance_rules.GROUP, server_group=None),
    "another attempt": _of_consumer(instance_rules.ATTEMPT, attempt=7),
    "another state at API level": _of_row(instance_rules.DRIFT, state="error"),
    "another host at API level": _of_row(instance_rules.DRIFT, host="elsewhere"),
    "another cell at API level": Damage(_other_cell, frozenset({instance_rules.DRIFT})),
    "wrong counts": Damage(
        lambda connection, _: connection.execute(
            sa.update(providers).values(consumers=providers.c.consumers + 5, used="{}")
        ),
        frozenset(),
    ),
    "the type of a cleanup": _of_consumer(instance_rules.TYPE, type="CLEANUP"),
    "the type of a migration while it waits to be confirmed": _of_consumer(
        instance_rules.TYPE, type="MIGRATION", state="moved"
    ),
    "generation 0": _of_consumer(instance_rules.ATTEMPT, generation=0),
    "a cell that does not exist": _of_consumer(instance_rules.ATTEMPT, cell="nowhere"),
    "a group that does not exist": _of_consumer(instance_rules.GROUP, server_group=UUID(int=77)),
    "it has ended and holds": _of_consumer(instance_rules.MISSING, ended_at=sa.func.current_timestamp()),
    "it has not ended and holds nothing": _of_consumer(instance_rules.MISSING, held="{}"),
    "it holds of a provider that does not exist": _of_consumer(
        instance_rules.MISSING, held='{"987654":{"1":3}}', state="shelved"
    ),
    "an offloaded one holds something": Damage(
        _holds_as_another, frozenset({instance_rules.ORPHAN}), state="offloaded"
    ),
    "the claim of a shelved one is gone": Damage(
        _delete, frozenset({instance_rules.MISSING}), state="shelved"
    ),
    "its way back is gone": Damage(
        lambda connection, id_: _delete(connection, migration_of(connection, id_)),
        frozenset({instance_rules.MISSING}),
        state="moved",
    ),
    "its claim and its way back are gone": Damage(
        lambda connection, id_: _delete(connection, id_, migration_of(connection, id_)),
        frozenset({instance_rules.MISSING}),
        state="moved",
    ),
    "its way back on its own host is gone": Damage(
        lambda connection, id_: _delete(connection, migration_of(connection, id_)),
        frozenset({instance_rules.MISSING}),
        state="resized",
    ),
    "its way back on its own host has a place there": Damage(
        _gets_a_place,
        frozenset({instance_rules.HOST, instance_rules.GROUP}),
        state="resized",
    ),
    "its way back is larger": Damage(
        lambda connection, id_: more_of(connection, migration_of(connection, id_), of_pool=False),
        frozenset({instance_rules.AMOUNTS}),
        state="moved",
    ),
    "its way back is an instance's": _of_migration(instance_rules.TYPE, type="INSTANCE"),
    "its way back is of no host and another project": _of_migration(
        instance_rules.HOST, instance_rules.PROJECT, host=None, project_id="bank"
    ),
    "its way back is no member of its group": _of_migration(instance_rules.GROUP, server_group=None),
    "its way back is of a cell that does not exist": _of_migration(instance_rules.ATTEMPT, cell="nowhere"),
    "accepted at API level": _of_row(instance_rules.DRIFT, state="accepted"),
    "waiting at API level, while it waits to be confirmed": _of_row(
        instance_rules.DRIFT, state="waiting", at="moved"
    ),
    "moving at API level": _of_row(instance_rules.DRIFT, state="moving", host="elsewhere"),
    "a cell that does not exist at API level": _of_row(instance_rules.DRIFT, cell="nowhere"),
    "active at API level, though it is offloaded": _of_row(
        instance_rules.DRIFT, state="active", at="offloaded"
    ),
}

IN_DOUBT: Mapping[str, Damage] = {
    "another host in its cell": _of_cell(
        _on_another_host, instance_rules.HOST, instance_rules.DRIFT, instance_rules.STRAY, instance_rules.LOST
    ),
    "deleted in its cell": _of_cell(
        lambda row: structs.replace(row, state="deleted", host=None),
        instance_rules.ORPHAN,
        instance_rules.DRIFT,
        instance_rules.STRAY,
    ),
    "in error in its cell": _of_cell(
        lambda row: structs.replace(row, state="error", host=None),
        instance_rules.ORPHAN,
        instance_rules.DRIFT,
        instance_rules.STRAY,
    ),
    "its cell's row is older than its move": _of_cell(
        _before_its_move,
        instance_rules.HOST,
        instance_rules.ATTEMPT,
        instance_rules.DRIFT,
        instance_rules.STRAY,
        state="moved",
    ),
    "no row of its cell": Damage(
        lambda connection, id_: _delete_rows(connection, id_, of_cell=True, of_api=False),
        frozenset({instance_rules.DRIFT, instance_rules.STRAY}),
    ),
    "no row of its cell, and offloaded": Damage(
        lambda connection, id_: _delete_rows(connection, id_, of_cell=True, of_api=False),
        frozenset({instance_rules.DRIFT}),
        state="offloaded",
    ),
    "no row at API level": Damage(
        lambda connection, id_: _delete_rows(connection, id_, of_cell=False, of_api=True),
        frozenset({instance_rules.UNLISTED}),
    ),
    "no row at API level, and offloaded": Damage(
        lambda connection, id_: _delete_rows(connection, id_, of_cell=False, of_api=True),
        frozenset({instance_rules.UNLISTED}),
        state="offloaded",
    ),
    "no row at all": Damage(
        _delete_all_rows,
        frozenset({instance_rules.ORPHAN, instance_rules.STRAY}),
    ),
}

# The cell puts an end to this by itself.
HARMLESS = _of_cell(_cleans_up_nothing)
