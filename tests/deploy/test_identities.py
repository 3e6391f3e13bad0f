"""A whole cloud whose servers ask each client for a certificate, with passwords in files: certificates and passwords change while
instances are booted, and no worker stops.
"""

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import Connection

from bus.rabbit import RabbitBroker
from kit.errors import Failure
from kit.sql import open_database, read_once
from moor.client import Client, Flavor, InstanceState
from tests.deploy.deployed import Servers, administer, environment, rows_of, running_servers
from tests.running import closing
from tests.servers.free_places import free_port
from tests.stories.moor.moor_process import Process, moor_json, moor_says, started
from tests.waiting import PATIENCE_S, until

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.postgresql,
    pytest.mark.timeout(600),
]

CELL = "harbour"
SMALL = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1)
# The user of the broker and the role of the database of each worker. A compute has no database.
WORKERS = {
    "placement": ("moor-placement", "moor_placement"),
    "scheduler": ("moor-scheduler", "moor_scheduler"),
    "keeper": ("moor-keeper", "moor_keeper"),
    "conductor": (f"moor-conductor-{CELL}", f"moor_conductor_{CELL}"),
    "compute": (f"moor-compute-{CELL}", ""),
}
PLACEMENT_API = ("moor-placement-api", "moor_placement_api")
# It logs in to the broker by its certificate, and by no password.
BY_CERTIFICATE = "moor-scheduler"
LONG_AGO = datetime.now(UTC) - timedelta(days=1)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with running_servers(asks_clients=True) as found:
        yield found


class Deployment:
    """The files of one deployment, and the environments of its workers."""

    def __init__(self, servers: Servers, place: Path) -> None:
        self.servers, self.etc = servers, place
        self.passwords = place / "passwords"
        self.certificates = servers.certificates
        self.port = free_port()

    async def make(self) -> None:
        fresh = ("DROP DATABASE IF EXISTS moorage WITH (FORCE)", "CREATE DATABASE moorage")
        await administer(self.servers, *fresh)
        await self.db_users()
        await self.upgrade()
        await self.declare()

    async def db_users(self, *flags: str) -> None:
        await moor_says(0, "", "db", "users", *self._files, *flags, **self._administrators)

    async def declare(self, *flags: str) -> None:
        await moor_says(
            0,
            "",
            "broker",
            "declare",
            "--users",
            *self._files,
            *("--ctl", self.servers.rabbitmq.ctl_command),
            *flags,
            **self._administrators,
        )

    async def upgrade(self) -> None:
        await moor_says(0, "", "db", "upgrade", **self.environment("moor-owner", "moor_owner"))

    @property
    def _files(self) -> tuple[str, ...]:
        named = {"--credentials": "credentials.toml", "--env-dir": "", "--password-dir": "passwords"}
        return tuple(part for flag, name in named.items() for part in (flag, str(self.etc / name)))

    @property
    def _administrators(self) -> dict[str, str]:
        return {
            "MOOR_BUS_URL": self.servers.bus,
            "MOOR_DB_URL": self.servers.db,
            "MOOR_CELLS": CELL,
            "PATH": "/usr/bin:/bin",
        }

    def environment(self, name: str, role: str = "") -> dict[str, str]:
        """The variables of the environment file, with the certificates of its user and its role."""
        found = environment(self.etc, name)
        if url := found.get("MOOR_BUS_URL"):
            head, _, query = url.partition("?")
            kept = [each for each in query.split("&") if not each.startswith("certfile=")]
            if name == BY_CERTIFICATE:
                kept = [each for each in kept if not each.startswith("passwordfile=")] + ["auth=external"]
            kept.append(f"certfile={quote(self.certificates.client(name))}")
            found["MOOR_BUS_URL"] = f"{head}?{'&'.join(kept)}"
        if (url := found.get("MOOR_DB_URL")) and role:
            found["MOOR_DB_URL"] = f"{url}&sslcert={quote(self.certificates.client(role))}"
        return found

    @asynccontextmanager
    async def workers(self) -> AsyncIterator[dict[str, Process]]:
        async with AsyncExitStack() as stack:
            running = {}
            for worker, (user, role) in WORKERS.items():
                flags = ("--hosts", "3") if worker == "compute" else ()
                running[worker] = await stack.enter_async_context(
                    started("run", worker, *flags, **self.environment(user, role))
                )
            running["placement-api"] = await stack.enter_async_context(self._placement_api())
            for process in running.values():
                await process.until_printed_to_stderr("ready")
            yield running

    @asynccontextmanager
    async def _placement_api(self) -> AsyncIterator[Process]:
        shown = self.certificates.server("placement-api")
        flags = {
            "--tls-cert": shown,
            "--tls-key": shown,
            "--tls-clients-ca": str(self.certificates.ca),
            "--listen": f"127.0.0.1:{self.port}",
        }
        options = [part for each in flags.items() for part in each]
        async with started("run", "placement-api", *options, **self.environment(*PLACEMENT_API)) as process:
            yield process

    @property
    def operator(self) -> dict[str, str]:
        return self.environment("moor-operator")

    async def close_all_connections(self) -> None:
        """Of the workers and clients, at the broker and at the database: they must log in again."""
        self.servers.rabbitmq.ctl("close_all_connections", "the test wants new logins")
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename LIKE 'moor%'"
        await administer(self.servers, ended)

    async def logins(self) -> dict[str, set[str]]:
        """How each user of the broker has logged in: the mechanism, and the name in its certificate."""
        listed = self.servers.rabbitmq.ctl(
            "list_connections", "--silent", "user", "auth_mechanism", "peer_cert_subject"
        )
        found: dict[str, set[str]] = {}
        for line in listed.splitlines():
            user, mechanism, subject = line.split("\t")
            found.setdefault(user, set()).add(f"{mechanism} {subject.partition('CN=')[2].partition(',')[0]}")
        return found

    async def sessions(self) -> dict[str, set[int]]:
        """The serial numbers of the certificates that each role of the database shows."""
        found: dict[str, set[int]] = {}
        for role, shown, serial in await rows_of(
            self.servers,
            "SELECT usename, client_dn, client_serial FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)"
            " WHERE usename LIKE 'moor%'",
        ):
            # The view cuts the name off after 63 bytes.
            name = str(shown).partition("/CN=")[2]
            assert name, shown
            assert role.startswith(name), (role, shown)
            found.setdefault(role, set()).add(int(serial))
        return found

    async def reload_servers(self) -> None:
        """Have both servers read their certificates again."""
        self.servers.rabbitmq.ctl("eval", "ssl:clear_pem_cache().")
        await administer(self.servers, "SELECT pg_reload_conf()")


class Boots:
    """Boots one instance after the other until it is told to stop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.states: list[InstanceState] = []
        self.may_go_on = True

    async def run(self) -> None:
        while self.may_go_on:
            self.states += await (await self._client.boot(SMALL, name="while-it-changes")).until_ended(
                timeout_s=PATIENCE_S
            )
            await self._client.delete(self.states[-1].id)

    async def until_more(self, count: int) -> None:
        wanted = len(self.states) + count
        await until(lambda: len(self.states) >= wanted, f"{count} more have ended")


@asynccontextmanager
async def booting(deployment: Deployment) -> AsyncIterator[Boots]:
    """Boots go on inside, and each of them must succeed."""
    async with Client(deployment.operator["MOOR_BUS_URL"], patience_s=PATIENCE_S) as client:
        boots = Boots(client)
        running = asyncio.create_task(boots.run())
        try:
            yield boots
            boots.may_go_on = False
            await running
        finally:
            running.cancel()
    assert {each.state for each in boots.states} == {"active"}


async def assert_nothing_was_lost(deployment: Deployment, workers: dict[str, Process]) -> None:
    await moor_says(0, "", "audit", "--settle", "0", **deployment.operator)
    letters = await moor_json("dead", "list", **deployment.operator)
    assert letters in ([], {"letters": []}), letters
    assert [name for name, process in workers.items() if process.has_ended] == []


async def test_a_cloud_runs_by_certificates_and_takes_renewed_ones_without_a_stop(
    servers: Servers, tmp_path: Path
) -> None:
    deployment = Deployment(servers, tmp_path)
    await deployment.make()

    async with deployment.workers() as workers:
        async with booting(deployment) as boots:
            await boots.until_more(2)
            logins = await deployment.logins()
            for user, _ in WORKERS.values():
                mechanism = "EXTERNAL" if user == BY_CERTIFICATE else "PLAIN"
                assert logins[user] == {f"{mechanism} {user}"}
            before = await deployment.sessions()
            assert {*before} >= {"moor_placement", "moor_scheduler", f"moor_conductor_{CELL}"}

            made = deployment.certificates
            for certificate, said in (
                (made.client("nova"), "200"),
                ("", "certificate required"),
                (made.client("stranger", by=made.another), "unknown ca"),
                (made.client("late", not_after=LONG_AGO), "certificate expired"),
            ):
                assert await asked_of_placement(deployment, certificate) == said

            # Every certificate is issued anew, at the clients and at the servers.
            first = await shown_by_placement(deployment)
            for user, role in (*WORKERS.values(), PLACEMENT_API):
                deployment.environment(user, role)
            made.server("placement-api")
            made.issue_servers()
            await deployment.reload_servers()
            await deployment.close_all_connections()
            await boots.until_more(3)
            workers["placement-api"].send_signal(signal.SIGHUP)
            await until(
                lambda: shown_by_placement(deployment),
                "another certificate is shown",
                lambda shown: shown != first,
            )
            # Nothing else has it ask its database again so soon.
            assert await asked_of_placement(deployment, made.client("nova")) == "200"
            after = await until(
                deployment.sessions, "all are back", lambda found: not found.keys() < before.keys()
            )
            assert all(not after[role] & before[role] for role in before)

        await assert_nothing_was_lost(deployment, workers)


async def asked_of_placement(deployment: Deployment, certificate: str) -> str:
    """The status of placement's answer, or what the TLS library says of its refusal."""
    context = ssl.create_default_context(cafile=str(deployment.certificates.ca))
    if certificate:
        context.load_cert_chain(certificate)
    try:
        async with httpx.AsyncClient(verify=context) as client:
            answer = await client.get(f"https://127.0.0.1:{deployment.port}/resource_providers")
    except (httpx.TransportError, ssl.SSLError) as refused:
        return str(refused).partition("alert ")[2].partition(" (_ssl")[0]
    return str(answer.status_code)


async def shown_by_placement(deployment: Deployment) -> bytes:
    context = ssl.create_default_context(cafile=str(deployment.certificates.ca))
    context.load_cert_chain(deployment.certificates.client("nova"))
    _, out = await asyncio.open_connection("127.0.0.1", deployment.port, ssl=context)
    try:
        return bytes(out.get_extra_info("ssl_object").getpeercert(binary_form=True))
    finally:
        out.close()


async def test_passwords_change_while_instances_are_booted(servers: Servers, tmp_path: Path) -> None:
    deployment = Deployment(servers, tmp_path)
    await deployment.make()
    old = passwords(deployment)
    assert "moor-placement.broker" in old
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in deployment.passwords.iterdir())

    async with deployment.workers() as workers:
        async with booting(deployment) as boots:
            await boots.until_more(2)

            # All of both, by the commands; then everybody has to log in again.
            await deployment.declare("--rotate", "all")
            await deployment.db_users("--rotate", "all")
            new = passwords(deployment)
            assert new.keys() == old.keys()
            assert not {*new.values()} & {*old.values()}
            await boots.until_more(1)
            await deployment.close_all_connections()
            await boots.until_more(3)

            # Now by hand, and the broker's password changes first: the worker waits, and says for which file.
            servers.rabbitmq.ctl("change_password", "moor-placement", "by hand")
            servers.rabbitmq.ctl("close_all_user_connections", "moor-placement", "the test wants new logins")
            said = await workers["placement"].until_printed_to_stderr("wrong password, or no such user")
            file = deployment.passwords / "moor-placement.broker"
            assert f"correct the file {file}" in said
            file.write_text("by hand\n")
            await boots.until_more(3)

            # The same for a role of the database.
            await administer(servers, "ALTER ROLE moor_placement PASSWORD 'by hand, too'")
            await deployment.close_all_connections()
            await workers["placement"].until_printed_to_stderr("password authentication failed")
            (deployment.passwords / "moor_placement.database").write_text("by hand, too\n")
            await boots.until_more(3)

        await assert_nothing_was_lost(deployment, workers)

    url = deployment.environment("moor-placement")["MOOR_BUS_URL"]
    former = url.replace("moor-placement@", f"moor-placement:{old['moor-placement.broker']}@")
    plain, _, query = former.partition("?")
    kept = "&".join(each for each in query.split("&") if not each.startswith("passwordfile="))
    assert "wrong password" in await tried(lambda: RabbitBroker(f"{plain}?{kept}").connect())


def passwords(deployment: Deployment) -> dict[str, str]:
    return {each.name: each.read_text().strip() for each in deployment.passwords.iterdir()}


async def of_bus(url: str, certificate: str = "") -> str:
    """What a login with this certificate fails with; empty if it does not."""
    return await tried(
        lambda: RabbitBroker(f"{url}&certfile={certificate}" if certificate else url).connect()
    )


async def of_db(url: str, certificate: str = "") -> str:
    async with closing(open_database(f"{url}&sslcert={certificate}" if certificate else url)) as (database,):
        try:
            await read_once(database, Connection.exec_driver_sql, "SELECT 1")
        except Failure as problem:
            return str(problem)
    return ""


async def test_each_wrong_certificate_is_refused_by_name_and_a_right_one_may_be_the_only_login(
    servers: Servers, tmp_path: Path
) -> None:
    deployment, made = Deployment(servers, tmp_path), servers.certificates
    await deployment.make()
    # Without certificates.
    bus, db = servers.bus.partition("&certfile=")[0], deployment.environment("moor-scheduler")["MOOR_DB_URL"]
    guest, scheduler, another = [made.client(name) for name in ("guest", "moor_scheduler", "moor_placement")]
    assert (await of_bus(bus, guest), await of_db(db, scheduler)) == ("", "")

    # Of clients
    for said in (await of_bus(bus), await of_db(db)):
        assert "client certificate" in said
    for wrong, why in (
        (made.client("stranger", by=made.another), "authority"),
        (made.client("late", not_after=LONG_AGO), "expired"),
    ):
        for said in (await of_bus(bus, wrong), await of_db(db, wrong)):
            assert (wrong in said, why in said) == (True, True), said
    assert f"the role's name in the certificate {another}" in await of_db(db, another)
    assert "certfile in the URL is /absent: " in await of_bus(bus, "/absent")

    # As the only login
    await administer(servers, "CREATE ROLE by_certificate LOGIN")
    bare_bus = bus.replace("guest:guest@", "guest@") + "&auth=external"
    bare_db = servers.db.replace("postgres@", "by_certificate@")
    assert await of_bus(bare_bus, guest) == await of_db(bare_db, made.client("by_certificate")) == ""
    assert "the broker takes no login by this certificate" in await of_bus(bare_bus, another)
    assert "certificate authentication failed" in await of_db(bare_db, another)

    # Of servers
    by_another = [url.replace(str(made.ca), str(made.another_ca)) for url in (bus, db)]
    for said in (await of_bus(by_another[0], guest), await of_db(by_another[1], scheduler)):
        assert "certificate is not trusted: " in said
        assert "self-signed certificate" in said or "unable to get local issuer" in said
    try:
        for why, names, not_after in (
            ("IP address mismatch", ("elsewhere.example",), None),
            ("certificate has expired", (), LONG_AGO),
        ):
            made.issue_servers(*names, not_after=not_after)
            await deployment.reload_servers()
            await until_said(lambda: of_bus(bus, guest), f"certificate is not trusted: {why}")
            await until_said(lambda: of_db(db, scheduler), f"certificate is not trusted: {why}")
        await moor_says(1, "certificate has expired", "list", MOOR_BUS_URL=f"{bus}&certfile={guest}")
    finally:
        made.issue_servers()
        await deployment.reload_servers()


async def until_said(attempt: Callable[[], Awaitable[str]], wanted: str) -> None:
    """A server reads its certificate again some moments after it was told."""
    await until(attempt, wanted, lambda said: wanted in said)


async def tried(connect: Callable[[], Awaitable[object]]) -> str:
    """What the failure says; empty if there was none."""
    try:
        connection = await connect()
    except Failure as problem:
        return str(problem)
    await connection.close()  # type: ignore[attr-defined]
    return ""
