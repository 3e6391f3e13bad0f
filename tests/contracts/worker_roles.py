"""The roles of workers on the tests' PostgreSQL, so that stores run with the rights that operators give them."""

from collections.abc import Sequence

import asyncpg
from sqlalchemy.engine import make_url

from kit.sql import grant_rights
from moor.clouds.db_command import ROLES, DatabaseUse, role_name

CELL = "a-cell"
# The role by which the tests of a package's store connect.
ROLE_OF = {
    "placement_worker": role_name("placement"),
    "scheduler_worker": role_name("scheduler"),
    "cell_conductor": role_name("conductor", CELL),
    "ironic_sync": role_name("ironic"),
}


async def give_rights(url: str, packages: Sequence[str]) -> None:
    """Make the roles that these packages need, which all databases of the server share, and give them their rights in this one."""
    use = DatabaseUse(url, tuple(packages), (CELL,))
    connection = await asyncpg.connect(
        make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    )
    try:
        for role in (use.owner, *use.roles):
            # Other processes make them at the same time.
            await connection.execute(
                f'DO $$ BEGIN CREATE ROLE "{role.name}" LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$'
            )
        await connection.execute(f'GRANT CREATE ON SCHEMA public TO "{use.owner.name}"')
    finally:
        await connection.close()
    granted = await grant_rights(url, use.owner, use.roles)
    assert len(granted) == len([role for role in ROLES if role.package in packages])
