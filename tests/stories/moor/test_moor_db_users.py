"""`moor db users`: a role for each kind of worker on a real PostgreSQL that asks for passwords."""

import stat
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from moor.clouds.db_command import ROLES, DatabaseUse
from tests.contracts.sql_stores import administer, rows_of
from tests.servers.guarded_postgres import guarded_postgres
from tests.servers.postgres import PrivatePostgres
from tests.stories.moor.moor_process import Result, Said, moor_json, moor_says, started

pytestmark = [pytest.mark.postgresql, pytest.mark.timeout(180)]

CELLS = "harbour,island"
PACKAGES = ("placement_worker", "scheduler_worker", "cell_conductor", "compute_sim", "ironic_sync", "keeper")

FORBIDDEN = (
    ("moor-scheduler", "UPDATE providers SET used = '{}'"),
    ("moor-scheduler", "SELECT 1 FROM cell_instances"),
    ("moor-conductor-harbour", "DELETE FROM requested_instances"),
    ("moor-conductor-harbour", "SELECT 1 FROM consumers"),
    ("moor-placement", "INSERT INTO known_cells VALUES ('x', now())"),
    ("moor-placement", "DELETE FROM feed"),
    ("moor-placement-api", "DELETE FROM feed"),
    ("moor-placement-api", "DELETE FROM quotas"),
    ("moor-ironic", "SELECT 1 FROM requested_instances"),
    ("moor-operator", "DELETE FROM ironic_nodes"),
    ("moor-scheduler", "CREATE TABLE more (id int)"),
    ("moor-scheduler", "DROP TABLE requested_instances"),
    ("moor-scheduler", "UPDATE scheduler_version SET version_num = '0001'"),
    ("moor-owner", "CREATE ROLE another"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    with guarded_postgres() as started_server:
        yield started_server


class Deployment:
    """A database, and the files of its roles."""

    def __init__(self, url: str, place: Path) -> None:
        self.url = url
        self.credentials = place / "credentials.toml"
        self.directory = place / "etc"

    async def users(self, *flags: str, code: int = 0, said: Said = "", url: str = "") -> Result:
        """The command, which ends with this code and says this."""
        files = ("--credentials", str(self.credentials), "--env-dir", str(self.directory))
        places = {"MOOR_DB_URL": url or self.url, "MOOR_CELLS": CELLS}
        return await moor_says(code, said, "db", "users", *files, *flags, **places)

    def environment(self, name: str) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.directory / f"{name}.env").read_text().splitlines())

    async def make(self) -> None:
        await self.users()
        await moor_says(0, "", "db", "upgrade", **self.environment("moor-owner"))

    def url_of(self, name: str) -> str:
        return next(url for variable, url in self.environment(name).items() if variable.endswith("_DB_URL"))


@asynccontextmanager
async def new_database(server: PrivatePostgres, owner: str = "postgres") -> AsyncIterator[str]:
    name = f"moor_{uuid4().hex}"
    await administer(f"CREATE DATABASE {name} OWNER {owner}", url=server.url)
    yield make_url(server.url).set(database=name).render_as_string(hide_password=False)
    await administer(f"DROP DATABASE {name} WITH (FORCE)", url=server.url)


@pytest.fixture
async def deployment(server: PrivatePostgres, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with new_database(server) as url:
        yield Deployment(url, tmp_path)


async def test_every_role_has_on_every_table_just_the_rights_that_are_listed_and_none_is_a_superuser(
    server: PrivatePostgres, deployment: Deployment
) -> None:
    await deployment.make()

    listed = await moor_json("db", "rights", MOOR_CELLS=CELLS)
    wanted = {(each["role"], each["table"], may) for each in listed for may in each["may"]}
    use = DatabaseUse("", PACKAGES, tuple(CELLS.split(",")))
    rows = await rows_of(
        deployment.url,
        "SELECT role, tablename, may FROM unnest($1::text[]) AS role, pg_tables,"
        " unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS may"
        " WHERE schemaname = 'public' AND has_table_privilege(role, tablename::text, may)",
        [role.name for role in use.roles],
    )
    creators = await rows_of(
        deployment.url,
        "SELECT rolname FROM pg_roles WHERE rolname LIKE 'moor%' AND (has_schema_privilege(rolname, 'public', 'CREATE')"
        " OR rolcreaterole OR rolcreatedb OR rolsuper OR rolbypassrls OR rolreplication)",
    )
    assert ({*rows}, creators) == (wanted, [("moor_owner",)])
    assert {role.package for role in ROLES} | {"compute_sim"} == {*PACKAGES}

    for name, statement in FORBIDDEN:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await administer(statement, url=deployment.url_of(name))
    await administer("ALTER ROLE moor_ironic SUPERUSER", url=server.url)
    try:
        await deployment.users(code=1, said="moor_ironic exists as a superuser")
    finally:
        await administer("ALTER ROLE moor_ironic NOSUPERUSER", url=server.url)


async def test_files_are_private_and_have_what_a_role_needs_and_no_password_is_printed(
    deployment: Deployment,
) -> None:
    made = await deployment.users()

    passwords = tomllib.loads(deployment.credentials.read_text())
    files = sorted(deployment.directory.iterdir())
    assert {file.stem for file in files} == {
        *("moor-conductor-harbour", "moor-conductor-island", "moor-ironic", "moor-operator", "moor-owner"),
        *("moor-placement", "moor-placement-api", "moor-scheduler", "moor-keeper"),
    }
    assert {stat.S_IMODE(file.stat().st_mode) for file in (*files, deployment.credentials)} == {0o600}
    assert stat.S_IMODE(deployment.directory.stat().st_mode) == 0o700
    for user, password in passwords.items():
        assert password not in made.out + made.err
        ((stored,),) = await rows_of(
            deployment.url, "SELECT rolpassword FROM pg_authid WHERE rolname = $1", user
        )
        assert stored.startswith("SCRAM-SHA-256$")
    assert passwords["moor_conductor_island"] in deployment.url_of("moor-conductor-island")


async def test_the_second_time_all_is_as_it_was_and_rights_given_by_hand_are_taken(
    deployment: Deployment,
) -> None:
    await deployment.make()
    before = {file: file.read_text() for file in deployment.directory.iterdir()}
    given = ("GRANT ALL ON providers TO moor_scheduler", "GRANT CREATE ON SCHEMA public TO PUBLIC")
    await administer(*given, url=deployment.url)

    await deployment.users(said="all were there")

    assert {file: file.read_text() for file in deployment.directory.iterdir()} == before
    for statement in ("SELECT 1 FROM providers", "CREATE TABLE its_own ()"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await administer(statement, url=deployment.url_of("moor-scheduler"))


async def test_a_password_is_changed_by_leaving_it_out_of_the_file(deployment: Deployment) -> None:
    await deployment.make()
    former = deployment.url_of("moor-scheduler")
    lines = deployment.credentials.read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if "moor_scheduler" not in line)
    deployment.credentials.write_text(kept)

    await deployment.users(code=2, said="moor-scheduler.env: MOOR_DB_URL")
    assert deployment.credentials.read_text() == kept
    await administer(url=former)

    await deployment.users("--replace-env", said="moor-scheduler.env: changed: MOOR_DB_URL")
    await administer(url=deployment.url_of("moor-scheduler"))
    with pytest.raises(asyncpg.InvalidPasswordError):
        await administer(url=former)


async def test_what_a_database_refuses_is_told_and_changes_no_other_one(deployment: Deployment) -> None:
    await deployment.make()

    told = ("ALTER ROLE moor_owner LOGIN: ", "permission denied")
    refused = await deployment.users(code=1, said=told, url=deployment.url_of("moor-owner"))

    assert "SCRAM" not in refused.err
    assert "Traceback" not in refused.err

    former = deployment.url_of("moor-scheduler")
    flags = ("--rotate", "moor_scheduler", "--replace-env", "--ironic-db", "postgresql://a@127.0.0.1:1/x")
    await deployment.users(*flags, code=1)
    await administer(url=former)


async def test_a_worker_waits_for_tables_that_its_role_may_not_make(deployment: Deployment) -> None:
    await deployment.users()
    environment = {**deployment.environment("moor-scheduler"), "MOOR_BUS_URL": "amqp://127.0.0.1:1"}

    async with started("run", "scheduler", **environment) as scheduler:
        said = await scheduler.until_printed_to_stderr("moor db upgrade")

    assert "the role moor_scheduler may create no tables" in said


async def test_new_tables_have_their_rights_after_the_upgrade(deployment: Deployment) -> None:
    await deployment.make()
    await administer(
        "DROP TABLE known_flavors",
        "CREATE TABLE known_flavors (name text, flavor bytea)",
        "ALTER TABLE known_flavors OWNER TO moor_owner",
        url=deployment.url,
    )

    await moor_says(0, "moor_scheduler", "db", "upgrade", **deployment.environment("moor-owner"))
    new = "INSERT INTO known_flavors VALUES ('small', '')"
    await administer(new, url=deployment.url_of("moor-scheduler"))
