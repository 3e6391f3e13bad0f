"""A private MariaDB with Nova's databases, made by Nova's own migrations; its data are in a directory of the test."""

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pymysql
from msgspec import Struct

from tests.nova.schema import NovaAddresses, migrate
from tests.waiting import wait_for

READER, PASSWORD = "moor", "reads/only@"
# As a URL has it.
PASSWORD_IN_URL = "reads%2Fonly%40"  # noqa: S105 - of a private server


class MariaDB(Struct, frozen=True):
    port: int

    def connection(self, database: str = "") -> "pymysql.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database or None, autocommit=True
        )

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


@contextmanager
def private_mariadb(directory: Path, port: int) -> Iterator[MariaDB]:
    data = directory / "mariadb"
    subprocess.run(
        [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--user=root",
        ],
        check=True,
        capture_output=True,
    )
    server = subprocess.Popen(
        [
            "/usr/sbin/mariadbd",
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={directory}/mariadb.sock",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            "--user=root",
            "--skip-log-bin",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _started(MariaDB(port))
    finally:
        server.terminate()
        server.wait(60)


def _started(server: MariaDB) -> MariaDB:
    def is_up() -> bool:
        with suppress(pymysql.err.OperationalError):
            server.connection().close()
            return True
        return False

    wait_for(is_up, "MariaDB takes connections")
    return server
