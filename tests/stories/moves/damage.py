"""Damage to the tables of a running cloud, by direct SQL: what an operator's slip, a lost disk or a bug could leave behind.

Each damage harms one instance, or adds a row of its own. `DAMAGES` says which faults an audit must find.
"""

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import Connection

from engine.flavors import InstanceId
from kit.sql import open_database, write_once
from moor.client.books import instance_rules, rules
from placement_worker.store_sql.rows import decode_held, encode_amounts
from placement_worker.tables import consumers, providers
from scheduler_worker.tables import instances as api_rows
from tests.running import closing

# A consumer that some damages add.
ADDED = UUID(int=0xADDED)


class Damage(Struct, frozen=True):
    """It is done to an instance in this state. `kinds` of faults are found about the instance, or about the added consumer."""

    do: Callable[[Connection, InstanceId], None]
    kinds: frozenset[str]
    adds: bool = False
    state: str = "active"


async def damage(url: str, done: Iterable[tuple[Damage, InstanceId]]) -> None:
    """Do these damages, each to its instance."""
    async with closing(open_database(url)) as (database,):
        for each, instance in done:
            await write_once(database, each.do, instance)


def run(connection: Connection, statement: sa.Delete | sa.Update) -> None:
    connection.execute(statement)


def change_consumer(connection: Connection, instance: InstanceId, **values: object) -> None:
    changed = connection.execute(sa.update(consumers).where(consumers.c.uuid == instance).values(**values))
    assert changed.rowcount == 1, f"{instance} has no row in placement"


def change_row(connection: Connection, instance: InstanceId, **values: object) -> None:
    changed = connection.execute(sa.update(api_rows).where(api_rows.c.id == instance).values(**values))
    assert changed.rowcount == 1, f"{instance} has no row at API level"


def more_of(connection: Connection, instance: InstanceId, *, of_pool: bool) -> None:
    """It holds ten more of what a NUMA node gives it, or of what the pool does."""
    text = connection.scalar(sa.select(consumers.c.held).where(consumers.c.uuid == instance))
    held = decode_held(text or "")
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
    other = connection.execute(
        sa.select(consumers.c.host, consumers.c.held).where(
            consumers.c.host != host, consumers.c.held != "{}"
        )
    ).first()
    assert other is not None, "instances live on several hosts"
    change_consumer(connection, instance, host=other.host, held=other.held)


def _other_cell(connection: Connection, instance: InstanceId) -> None:
    cell = connection.scalar(sa.select(api_rows.c.cell).where(api_rows.c.id == instance))
    change_row(connection, instance, cell="c2" if cell == "c1" else "c1")


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
    "its claim is gone": Damage(
        lambda connection, id_: run(connection, sa.delete(consumers).where(consumers.c.uuid == id_)),
        frozenset({instance_rules.MISSING}),
    ),
    "its claim has ended": Damage(
        lambda connection, id_: change_consumer(
            connection, id_, ended_at=sa.func.current_timestamp(), held="{}"
        ),
        frozenset({instance_rules.MISSING}),
    ),
    "more of a NUMA node": Damage(
        lambda connection, id_: more_of(connection, id_, of_pool=False), frozenset({instance_rules.AMOUNTS})
    ),
    "more of the pool": Damage(
        lambda connection, id_: more_of(connection, id_, of_pool=True), frozenset({instance_rules.AMOUNTS})
    ),
    "another host in placement": Damage(_other_host, frozenset({instance_rules.HOST})),
    "another type": Damage(
        lambda connection, id_: change_consumer(connection, id_, type="VOLUME"),
        frozenset({instance_rules.TYPE}),
    ),
    "another project and user": Damage(
        lambda connection, id_: change_consumer(connection, id_, project_id="bank", user_id="bob"),
        frozenset({instance_rules.PROJECT, instance_rules.USER}),
    ),
    "no group": Damage(
        lambda connection, id_: change_consumer(connection, id_, server_group=None),
        frozenset({instance_rules.GROUP}),
    ),
    "another attempt": Damage(
        lambda connection, id_: change_consumer(connection, id_, attempt=7),
        frozenset({instance_rules.ATTEMPT}),
    ),
    "another state at API level": Damage(
        lambda connection, id_: change_row(connection, id_, state="error"), frozenset({instance_rules.DRIFT})
    ),
    "another host at API level": Damage(
        lambda connection, id_: change_row(connection, id_, host="elsewhere"),
        frozenset({instance_rules.DRIFT}),
    ),
    "another cell at API level": Damage(_other_cell, frozenset({instance_rules.DRIFT})),
    "wrong counts": Damage(
        lambda connection, _: run(
            connection, sa.update(providers).values(consumers=providers.c.consumers + 5, used="{}")
        ),
        frozenset(),
    ),
}
