"""A private MariaDB with Nova's databases, made by Nova's own migrations; it ends with its data."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pymysql
from msgspec import Struct

from laboratory.private_servers import Command, Keeper, wait_until_ready
from tests.nova.schema import NovaAddresses, migrate
from tests.servers.free_places import free_port

READER, PASSWORD = "moor", "reads/only@"
# As a URL has it.
PASSWORD_IN_URL = "reads%2Fonly%40"  # noqa: S105 - of a private server


class MariaDB(Struct, frozen=True):
    port: int

    def connection(self, database: str = "") -> "pymysql.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database or None, autocommit=True
        )

    def is_open(self) -> bool:
        try:
            self.connection().close()
        except (pymysql.err.MySQLError, OSError):
            return False
        return True

    def addresses_of(
        self, cells: tuple[str, ...], *, user: str = READER, password: str = PASSWORD_IN_URL
    ) -> NovaAddresses:
        server = f"mysql://{user}:{password}@127.0.0.1:{self.port}"
        return NovaAddresses(
            f"{server}/nova_api", dict.fromkeys(cells, f"{server}/nova"), f"{server}/placement"
        )

    def fill(self, addresses: NovaAddresses, directory: Path) -> None:
        """Make the databases, with the rows of these SQLite files (of one cell), and a user that may only read them."""
        files = {
            "nova_api": addresses.api,
            "nova": next(iter(addresses.cells.values())),
            "placement": addresses.placement,
        }
        with closing(self.connection()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER '{READER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
            for database in files:
                cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb3")
                cursor.execute(f"GRANT SELECT ON {database}.* TO '{READER}'@'127.0.0.1'")
        urls = [f"mysql+pymysql://root@127.0.0.1:{self.port}/{database}" for database in files]
        migrate(urls[0], urls[1], urls[2], directory)
        for database, url in files.items():
            self._copy(Path(url.removeprefix("sqlite:///")), database)

    def _copy(self, file: Path, database: str) -> None:
        with (
            closing(sqlite3.connect(file)) as source,
            closing(self.connection(database)) as target,
            target.cursor() as cursor,
        ):
            cursor.execute("SET FOREIGN_KEY_CHECKS = 0")
            tables = [
                name for (name,) in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            for table in tables:
                rows = source.execute(f"SELECT * FROM {table}")  # noqa: S608 - a name of a table
                columns = [each[0] for each in rows.description]
                found = rows.fetchall()
                if not found or table in ("alembic_version", "sqlite_sequence"):
                    continue
                names, marks = ", ".join(f"`{each}`" for each in columns), ", ".join(["%s"] * len(columns))
                cursor.execute(f"DELETE FROM {table}")  # noqa: S608
                cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", found)  # noqa: S608


def start_mariadb(keeper: Keeper, *options: str) -> tuple[MariaDB, int]:
    """With its data in the keeper's directory. Returns it with the id of its process."""
    data, log, server = keeper.directory / "mariadb", keeper.directory / "mariadb.log", MariaDB(free_port())
    installing = ("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root")
    subprocess.run((*installing, "--auth-root-authentication-method=normal"), check=True, capture_output=True)
    serving = (
        *("/usr/sbin/mariadbd", "--no-defaults", f"--datadir={data}", "--bind-address=127.0.0.1"),
        *(f"--socket={keeper.directory}/mariadb.sock", f"--port={server.port}", "--user=root"),
        *("--skip-log-bin", *options),
    )
    process = keeper.start(Command(argv=serving, env={**os.environ}, log=str(log)))
    wait_until_ready(
        "MariaDB", ready=server.is_open, alive=lambda: process in keeper.processes(), logs=(log,)
    )
    return server, process


@contextmanager
def private_mariadb() -> Iterator[MariaDB]:
    keeper = Keeper()
    try:
        yield start_mariadb(keeper)[0]
    finally:
        keeper.close()
