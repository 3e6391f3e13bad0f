"""What an operator does with `moor`, on a broker that other processes reach."""

import json
import os
import stat
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from bus import message
from bus.broker import Receipt
from bus.message import Parcel
from bus.rabbit import RabbitBroker
from bus.topology import API, DEAD, EVENTS, user_of
from kit.errors import AccessRefused, NotFound
from moor.clouds.cloud import CloudPlan, cloud
from tests.contracts.broker_under_test import ADMIN
from tests.contracts.memory_under_test import UnixUnderTest
from tests.contracts.rabbitmq_under_test import CTL_VARIABLE, PASSWORD, RabbitMQUnderTest
from tests.contracts.stage import Remembering, dead_letters, declared, line, order, parcel, send, working
from tests.stories.moor.moor_process import moor, moor_json
from tests.waiting import until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=["unix", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[UnixUnderTest | RabbitMQUnderTest]:
    under_test = await (UnixUnderTest if request.param == "unix" else RabbitMQUnderTest).start()
    yield under_test
    await under_test.close()


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

    dropped = await moor("dead", "delete", broken["handle"], "--bus", url)
    assert (dropped.code, dropped.out.strip()) == (0, "deleted 1")
    ready.append(True)
    replayed = await moor("dead", "replay", "--all", "--bus", url)
    assert (replayed.code, replayed.out.strip()) == (0, "replayed 2")
    async with working(broker, memory):
        await until(lambda: sorted(set(memory.handled)) == [0, 1, 2, 3])

    assert (await moor("dead", "list", "--bus", url)).out.strip() == "no dead letters"


async def test_a_program_gets_all_dead_letters_and_is_told_of_those_that_its_limit_leaves_out(
    served: UnixUnderTest | RabbitMQUnderTest,
) -> None:
    broker, url = await declared(served), served.url()
    letters = [Parcel(DEAD, "compute.c1.work", b"{}", headers={message.REASON: "r"}) for _ in range(1_020)]
    await send(broker, *letters)

    every = await moor("dead", "list", "-o", "json", "--bus", url)
    some = await moor("dead", "list", "-o", "json", "--limit", "20", "--bus", url)
    shown = await moor("dead", "list", "--bus", url)

    assert (len(json.loads(every.out)), every.err) == (1_020, "")
    assert (len(json.loads(some.out)), "the oldest 20 of 1,020 were read" in some.err) == (20, True)
    assert "the oldest 1,000 of 1,020 were read" in shown.err


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
    assert (await moor("dead", "delete", handle, "--like", "--bus", url)).out.strip() == "deleted 3"
    assert len(json.loads((await moor("dead", "list", "-o", "json", "--bus", url)).out)) == 2
    unknown = await moor("dead", "delete", handle, "--like", "--bus", url)
    assert (unknown.code, f"no dead letter '{handle}'" in unknown.err) == (1, True)


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

    plan, database = CloudPlan(cells={"harbour": 1}), f"sqlite+aiosqlite:///{tmp_path / 'moor.db'}"
    async with cloud(plan, served.broker(), database, as_user=lambda user: RabbitBroker(url(user))):
        await until_up(url(ADMIN.user))
        booted = await moor("boot", "--vcpus", "1", "--name", "web", MOOR_BUS_URL=url(ADMIN.user))
        assert (booted.code, "active" in booted.out) == (0, True), booted.err
        drain = ("host", "set", "harbour-host-00001", "draining", "--reason", "new fan")
        refused = await moor(*drain, MOOR_BUS_URL=url(ADMIN.user))
        assert (refused.code, "the broker refused" in refused.err) == (1, True), refused.err
        done = await moor(*drain, MOOR_BUS_URL=url("moor-operator"))
        assert (done.code, "draining" in done.out) == (0, True), done.err
        nowhere = await moor("boot", "--vcpus", "1", "--name", "web", MOOR_BUS_URL=url(ADMIN.user))
        # Why the host is drained is an operator's note.
        assert (nowhere.code, "enabled" in nowhere.out, "new fan" in nowhere.out) == (1, True, False), (
            nowhere.out
        )
    await served.close()


def credentials_above_cells(folder: Path) -> Path:
    """Other tests on this server use users with the same names: keep the existing passwords."""
    credentials = folder / "credentials.toml"
    above_cells = ("scheduler", "placement", "operator", "ironic")
    credentials.write_text("".join(f'{user_of(role)} = "{PASSWORD}"\n' for role in above_cells))
    return credentials


async def until_up(url: str) -> None:
    await until(
        lambda: moor_json("host", "list", MOOR_BUS_URL=url),
        "a host is up",
        lambda found: any(host["up"] for host in found),
    )
