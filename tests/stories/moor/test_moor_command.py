"""What an operator does with `moor`, on a broker that other processes reach."""

import asyncio
import itertools
import json
import os
import random
import stat
import tomllib
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from bus import message
from bus.broker import Receipt
from bus.message import Parcel
from bus.rabbit import RabbitBroker
from bus.topology import API, DEAD, EVENTS, user_of
from bus.workers.sending import Link
from ironic_sync.events import read_inbox
from ironic_sync.settings import Inbox
from kit.errors import AccessRefused, NotFound
from laboratory.computes.hosts import equal_hosts
from moor.clouds.cloud import cloud
from tests.adversity.hostile import hostile_parcel
from tests.contracts.broker_under_test import ADMIN
from tests.contracts.memory_under_test import UnixUnderTest
from tests.contracts.rabbitmq_under_test import CTL_VARIABLE, PASSWORD, RabbitMQUnderTest
from tests.contracts.stage import (
    SETTINGS,
    Remembering,
    dead_letters,
    declared,
    line,
    order,
    parcel,
    send,
    until,
    working,
)
from tests.stories.moor.moor_process import moor, moor_json

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=["unix", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[UnixUnderTest | RabbitMQUnderTest]:
    under_test = await (UnixUnderTest if request.param == "unix" else RabbitMQUnderTest).start()
    yield under_test
    await under_test.close()


async def test_declaring_creates_everything_and_may_be_repeated(
    served: UnixUnderTest | RabbitMQUnderTest,
) -> None:
    for _ in range(2):
        ran = await moor("broker", "declare", "--cells", "c1,c2", MOOR_BUS_URL=served.url())
        assert (ran.code, ran.err) == (0, "")
        assert "declared 17 exchanges and 19 queues" in ran.out

    shown = await moor("broker", "show", "--cells", "c1,c2", "-o", "json", "--bus", served.url())
    queues = {queue["name"]: queue["waiting"] for queue in json.loads(shown.out)["brokers"][0]["queues"]}
    assert queues["conductor.c2.work"] == 0
    assert queues["ironic.events"] == 0


async def test_each_broker_gets_only_its_own_objects() -> None:
    api, cell = await UnixUnderTest.start(), await UnixUnderTest.start()
    try:
        places = {"MOOR_BUS_URL": api.url(), "MOOR_CELL_BUS_URLS": f"c1={cell.url()}"}
        ran = await moor("broker", "declare", "--only", "c1", **places)
        assert (ran.code, ran.err) == (0, "")
        assert "9 queues for c1" in ran.out
        assert "api" not in ran.out
        connection = await cell.broker().connect()
        assert await connection.depth("conductor.c1.work") == 0
        with pytest.raises(NotFound):
            await connection.depth("scheduler.requests")
        await connection.close()

        nowhere = await moor("broker", "declare", "--only", "c9", **places)
        assert nowhere.code == 2
        assert "the brokers are api, c1" in nowhere.err
    finally:
        await api.close()
        await cell.close()


async def test_ironics_exchange_is_made_only_on_request(served: UnixUnderTest | RabbitMQUnderTest) -> None:
    connection = await served.broker().connect()
    await moor("broker", "declare", "--bus", served.url())
    notification = Parcel("ironic", "ironic_versioned_notifications.info", b"{}", mandatory=True)

    await moor("broker", "declare", "--ironic", "--bus", served.url())
    publishing = await connection.open_publishing()
    assert await publishing.publish(notification) is Receipt.CONFIRMED
    assert await connection.depth("ironic.events") == 1
    await connection.close()


async def test_ironics_own_broker_gets_its_inbox_and_nothing_else() -> None:
    api, own = await UnixUnderTest.start(), await UnixUnderTest.start()
    try:
        places = {"MOOR_BUS_URL": api.url(), "MOOR_IRONIC_BUS_URL": own.url()}
        ran = await moor("broker", "declare", "--ironic", "--only", "ironic", **places)
        assert (ran.code, ran.err) == (0, "")
        assert "declared 1 exchanges and 1 queues for ironic" in ran.out
        connection = await own.broker().connect()
        publishing = await connection.open_publishing()
        key = "ironic_versioned_notifications.error"
        assert await publishing.publish(Parcel("ironic", key, b"{}", mandatory=True)) is Receipt.CONFIRMED
        assert await connection.depth("ironic.events") == 1
        await connection.close()
    finally:
        await api.close()
        await own.close()


async def test_the_topology_is_shown_without_any_broker() -> None:
    ran = await moor("broker", "show", "--cells", "harbour")

    assert ran.code == 0
    for word in ("placement.claims", "conductor.harbour.work", "inventory.report", "moor-compute-harbour"):
        assert word in ran.out


async def test_dead_letters_are_listed_shown_replayed_and_dropped(
    served: UnixUnderTest | RabbitMQUnderTest,
) -> None:
    broker = await declared(served)
    url = served.url()
    ready: list[bool] = []

    def refuse(number: int) -> None:
        if not ready and number in (1, 2):
            raise AssertionError("a bug that the next release mends")

    memory = Remembering(refuse)
    async with working(broker, memory):
        await send(broker, parcel(*(line(order(n)) for n in range(4)), b"{broken"))
        await dead_letters(broker, 3)

    listed = json.loads((await moor("dead", "list", "-o", "json", "--bus", url)).out)
    assert sorted(letter["type"] for letter in listed) == ["?", "release", "release"]
    assert "20 attempts, none is left" in next(each["reason"] for each in listed if each["type"] == "release")
    broken = next(letter for letter in listed if letter["type"] == "?")
    shown = await moor("dead", "show", broken["handle"], "--bus", url)
    assert "{broken" in shown.out
    assert "placement.work" in shown.out

    dropped = await moor("dead", "drop", broken["handle"], "--bus", url)
    assert (dropped.code, dropped.out.strip()) == (0, "dropped 1")
    ready.append(True)
    replayed = await moor("dead", "replay", "--all", "--bus", url)
    assert (replayed.code, replayed.out.strip()) == (0, "replayed 2")
    async with working(broker, memory):
        await until(lambda: sorted(set(memory.handled)) == [0, 1, 2, 3])

    assert (await moor("dead", "list", "--bus", url)).out.strip() == "no dead letters"


async def test_any_dead_letter_is_listed_shown_and_dropped(
    served: UnixUnderTest | RabbitMQUnderTest,
) -> None:
    """Markup with a closing tag only, terminal escapes, half of a character, identical letters."""
    broker, url = await declared(served), served.url()
    chance = random.Random("hostile letters")
    odd = Parcel(DEAD, "[/red]", b"\xff[/bold]\x1b[2J", headers={message.REASON: "[/x] \x1b[31m \0 \u009b"})
    await send(broker, odd, odd, *(hostile_parcel(chance, DEAD, "placement.work") for _ in range(100)))

    listed = await moor("dead", "list", "--bus", url)
    as_json = json.loads((await moor("dead", "list", "-o", "json", "--bus", url)).out)
    first, second = [each["handle"] for each in as_json if each["queue"] == "[/red]"]
    shown = await moor("dead", "show", second, "--bus", url)
    dropped = await moor("dead", "drop", first, "--bus", url)
    nowhere = await moor("dead", "replay", "--queue", "[/red]", "--all", "--bus", url)
    rest = await moor("dead", "drop", "--all", "--bus", url)

    assert [each.code for each in (listed, shown, dropped, nowhere, rest)] == [0, 0, 0, 1, 0]
    assert len(as_json) == 102
    assert "\x1b" not in listed.out + shown.out
    assert r"[/x] \u001b[31m \u0000 \u009b" in shown.out
    assert (
        "was not replayed: no role reads the queue '[/red]'; it and the letters after it stay here"
        in nowhere.err
    )
    assert (dropped.out.strip(), rest.out.strip()) == ("dropped 1", "dropped 101")
    assert (await moor("dead", "list", "--bus", url)).out.strip() == "no dead letters"


async def test_dead_letters_that_differ_by_ids_alone_are_one_line_and_decided_together(
    served: UnixUnderTest | RabbitMQUnderTest,
) -> None:
    broker, url = await declared(served), served.url()

    def letter(key: str, reason: str) -> Parcel:
        return Parcel(DEAD, key, reason.encode(), headers={message.REASON: reason})

    absent = [letter("compute.c1.work", f"host is {UUID(int=number)}, in {number} s") for number in range(3)]
    await send(
        broker, *absent, letter("compute.c2.work", "host is 4, in 4 s"), letter("compute.c1.work", "other")
    )

    listed = (await moor("dead", "list", "--bus", url)).out.splitlines()
    each = (await moor("dead", "list", "--each", "--bus", url)).out.splitlines()
    assert [line.split()[0] for line in listed] == ["letters", "3", "1", "1"]
    assert len(each) == 1 + 5
    handle = listed[1].split()[1]
    assert (await moor("dead", "drop", handle, "--like", "--bus", url)).out.strip() == "dropped 3"
    assert len(json.loads((await moor("dead", "list", "-o", "json", "--bus", url)).out)) == 2
    unknown = await moor("dead", "drop", handle, "--like", "--bus", url)
    assert (unknown.code, f"no dead letter {handle}" in unknown.err) == (1, True)


async def test_replaying_or_dropping_unknown_dead_letters_does_nothing_and_says_so(
    served: UnixUnderTest | RabbitMQUnderTest,
) -> None:
    await declared(served)

    unknown = await moor("dead", "drop", "0123456789ab", "--bus", served.url())
    assert unknown.code == 1
    assert "no dead letter 0123456789ab: nothing was done" in unknown.err
    nothing = await moor("dead", "replay", "--bus", served.url())
    assert nothing.code == 2
    assert "give their handles, or --all" in nothing.err


async def test_mistakes_are_reported_in_one_line() -> None:
    nobody = await moor("dead", "list", "--bus", "unix:///nowhere/at/all.sock")
    assert nobody.code == 1
    assert "no process serves a bus at /nowhere/at/all.sock" in nobody.err.replace("\n", " ")
    scheme = await moor("dead", "list", "--bus", "http://localhost")
    assert scheme.code == 2
    assert "amqp, amqps, unix or memory" in scheme.err
    cell = await moor("broker", "show", "--cells", "Über.cell")
    assert cell.code == 2
    assert "Über.cell" in cell.err
    assert "Traceback" not in nobody.err + scheme.err + cell.err


async def test_the_tables_are_brought_up_to_date_once(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'moor.db'}"

    first = await moor("db", "upgrade", MOOR_DB_URL=url)
    second = await moor("db", "upgrade", "--db", url)

    assert (first.code, second.code) == (0, 0)
    assert "upgraded from nothing" in first.out
    assert "is up to date" in second.out


@pytest.mark.rabbitmq
async def test_users_are_created_with_their_rights_and_keep_their_passwords(tmp_path: Path) -> None:
    served = await RabbitMQUnderTest.start()
    credentials = credentials_above_cells(tmp_path)
    called, ctl = tmp_path / "called", tmp_path / "ctl"
    ctl.write_text(f'#!/bin/sh\necho "$1" >> {called}\nexec {os.environ[CTL_VARIABLE]} "$@"\n')
    ctl.chmod(0o700)
    command = (
        "broker", "declare", "--cells", "harbour", "--users", "--credentials", str(credentials),
        "--ctl", str(ctl), "--bus", served.url(),
    )  # fmt: skip

    first = await moor(*command)
    assert first.code == 0, first.err
    passwords = tomllib.loads(credentials.read_text())
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
    again = await moor(*command)
    assert again.code == 0, again.err
    assert tomllib.loads(credentials.read_text()) == passwords
    # Each call starts a virtual machine of its own, and takes seconds.
    assert called.read_text().split() == ["list_permissions", "import_definitions"] * 2

    cell = RabbitBroker(
        served.url().replace("guest:guest", f"moor-conductor-harbour:{passwords['moor-conductor-harbour']}")
    )
    connection = await cell.connect()
    publishing = await connection.open_publishing()
    assert await publishing.publish(Parcel(EVENTS, "instance.active.harbour", b"{}")) is Receipt.CONFIRMED
    with pytest.raises(AccessRefused):
        await publishing.publish(Parcel(API, "build.request.-", b"{}"))
    await connection.close()
    await served.close()


SOUTH = {"MOOR_IRONIC_EXCHANGE": "ironic-south", "MOOR_IRONIC_QUEUE": "ironic.south"}


@pytest.mark.rabbitmq
@pytest.mark.parametrize("is_apart", [True, False], ids=["a broker of Ironics", "one broker for all"])
async def test_daemons_of_two_ironics_on_one_broker_hear_after_either_was_declared_again(
    tmp_path: Path, *, is_apart: bool
) -> None:
    served = await RabbitMQUnderTest.start()
    credentials = credentials_above_cells(tmp_path)
    where = (
        {"MOOR_BUS_URL": "amqp://guest:guest@127.0.0.1:1/", "MOOR_IRONIC_BUS_URL": served.url()}
        if is_apart
        else {"MOOR_BUS_URL": served.url()}
    )
    command = (
        "broker", "declare", "--cells", "harbour", "--ironic", "--users", "--ctl", os.environ[CTL_VARIABLE],
        "--only", "ironic" if is_apart else "api", "--credentials",
    )  # fmt: skip

    numbers = itertools.count()

    async def check_both_hear() -> None:
        for inbox in (Inbox(), Inbox(exchange="ironic-south", queue="ironic.south")):
            user = f"moor-ironic:{PASSWORD}"
            link = Link(RabbitBroker(served.url().replace("guest:guest", user)), SETTINGS)
            async with aclosing(read_inbox(link, inbox, settings=SETTINGS)) as batches:
                # What is published before the inbox is bound is lost.
                assert (await anext(batches)).gap
                body, heard = str(next(numbers)).encode(), list[bytes]()
                await send(served.broker(), Parcel(inbox.exchange, f"{inbox.topics[0]}.info", body))
                async with asyncio.timeout(20):
                    while body not in heard:
                        heard += [each.body for each in (await anext(batches)).messages]
            await link.close()

    for names in ({}, SOUTH):
        ran = await moor(*command, str(credentials), **where, **names)
        assert ran.code == 0, ran.err
    await check_both_hear()
    for names in ({}, SOUTH):
        ran = await moor(*command, str(credentials), **where, **names)
        assert ran.code == 0, ran.err
        assert "moor-ironic keeps its rights to ironic." in ran.out
        await check_both_hear()

    # A file without the password would lock the daemons of the other one out.
    refused = await moor(*command, str(tmp_path / "new.toml"), **where, **SOUTH)
    assert refused.code == 1
    assert "moor-ironic reads ironic.events on this broker already" in refused.err
    await check_both_hear()
    await served.close()


@pytest.mark.rabbitmq
async def test_a_client_of_a_broker_with_users_may_boot_and_only_an_operator_sets_hosts(
    tmp_path: Path,
) -> None:
    served = await RabbitMQUnderTest.start()
    credentials = credentials_above_cells(tmp_path)
    declared = await moor(
        "broker", "declare", "--cells", "harbour", "--users", "--credentials", str(credentials),
        "--ctl", os.environ[CTL_VARIABLE], "--bus", served.url(),
    )  # fmt: skip
    assert declared.code == 0, declared.err
    passwords = tomllib.loads(credentials.read_text())

    await served.add_user(ADMIN.user, ("harbour",))
    passwords[ADMIN.user] = PASSWORD

    def url(user: str) -> str:
        return served.url().replace("guest:guest", f"{user}:{passwords[user]}")

    hosts, database = {"harbour": equal_hosts("harbour", 1)}, f"sqlite+aiosqlite:///{tmp_path / 'moor.db'}"
    async with cloud(served.broker(), database, hosts, as_user=lambda user: RabbitBroker(url(user))):
        await until_up(url(ADMIN.user))
        booted = await moor("boot", "--vcpus", "1", "--name", "web", MOOR_BUS_URL=url(ADMIN.user))
        assert (booted.code, "active" in booted.out) == (0, True), booted.err
        drain = ("host", "set", "harbour-host-00001", "draining", "--reason", "new fan")
        refused = await moor(*drain, MOOR_BUS_URL=url(ADMIN.user))
        assert (refused.code, "the broker refused" in refused.err) == (1, True), refused.err
        done = await moor(*drain, MOOR_BUS_URL=url("moor-operator"))
        assert (done.code, "draining" in done.out) == (0, True), done.err
        nowhere = await moor("boot", "--vcpus", "1", "--name", "web", MOOR_BUS_URL=url(ADMIN.user))
        assert (nowhere.code, "new fan" in nowhere.out) == (1, True), nowhere.out
    await served.close()


def credentials_above_cells(folder: Path) -> Path:
    """Other tests on this server use users with the same names: keep the existing passwords."""
    credentials = folder / "credentials.toml"
    above_cells = ("scheduler", "placement", "operator", "ironic")
    credentials.write_text("".join(f'{user_of(role)} = "{PASSWORD}"\n' for role in above_cells))
    return credentials


async def until_up(url: str) -> None:
    async with asyncio.timeout(60):
        while not any(host["up"] for host in await moor_json("host", "list", MOOR_BUS_URL=url)):
            pass
