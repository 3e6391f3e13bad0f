"""What an operator does with `moor` on a broker that other processes reach; and `moor` as a new user runs it: in narrow terminals and pipes, with
wrong words, without workers.
"""

import asyncio
import json
import os
import re
import signal
import stat
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from bus import message
from bus.addresses import broker_at
from bus.broker import Receipt
from bus.message import Parcel
from bus.rabbit import RabbitBroker
from bus.topology import API, DEAD, EVENTS, user_of
from kit.errors import AccessRefused, NotFound
from moor.clouds.cloud import CloudPlan, cloud
from tests.contracts.broker_under_test import ADMIN
from tests.contracts.memory_under_test import UnixUnderTest
from tests.contracts.rabbitmq_under_test import CTL_VARIABLE, PASSWORD, RabbitMQUnderTest
from tests.contracts.small_world import connected, publish
from tests.contracts.stage import Remembering, dead_letters, declared, line, order, parcel, send, working
from tests.running import closing
from tests.stories.layouts import API_ROLES
from tests.stories.moor.moor_process import Result, moor, moor_json, moor_says, started
from tests.waiting import until


@pytest.fixture(params=["unix", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[UnixUnderTest | RabbitMQUnderTest]:
    kind = UnixUnderTest if request.param == "unix" else RabbitMQUnderTest
    async with closing(await kind.start()) as (under_test,):
        yield under_test


async def test_each_broker_gets_only_its_own_objects() -> None:
    async with closing(await UnixUnderTest.start(), await UnixUnderTest.start()) as (api, cell):
        places = {"MOOR_BUS_URL": api.url(), "MOOR_CELL_BUS_URLS": f"c1={cell.url()}"}
        ran = await moor_says(0, "9 queues for c1", "broker", "declare", "--only", "c1", **places)
        assert ("api" in ran.out, ran.err) == (False, "")
        async with connected(cell.broker()) as connection:
            assert await connection.depth("conductor.c1.work") == 0
            with pytest.raises(NotFound):
                await connection.depth("scheduler.requests")

        await moor_says(2, "the brokers are api, c1", "broker", "declare", "--only", "c9", **places)


async def test_dead_letters_are_listed_up_to_a_limit_shown_replayed_and_dropped(
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
    handle = next(letter["handle"] for letter in listed if letter["type"] == "?")
    await moor_says(0, ("{broken", "placement.work"), "dead", "show", handle, "--bus", url)

    await moor_says(0, "deleted 1", "dead", "delete", handle, "--bus", url)
    ready.append(True)
    await moor_says(0, "replayed 2", "dead", "replay", "--all", "--bus", url)
    async with working(broker, memory):
        await until(lambda: sorted(set(memory.handled)) == [0, 1, 2, 3])

    assert (await moor("dead", "list", "--bus", url)).out.strip() == "no dead letters"
    letters = [Parcel(DEAD, "compute.c1.work", b"{}", headers={message.REASON: "r"}) for _ in range(1_020)]
    await send(broker, *letters)
    every = await moor("dead", "list", "-o", "json", "--bus", url)
    assert (len(json.loads(every.out)), every.err) == (1_020, "")
    told = "the oldest 20 of 1,020 were read"
    some = await moor_says(0, told, "dead", "list", "-o", "json", "--limit", "20", "--bus", url)
    assert len(json.loads(some.out)) == 20
    await moor_says(0, "the oldest 1,000 of 1,020 were read", "dead", "list", "--bus", url)


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
    await moor_says(1, f"no dead letter '{handle}'", "dead", "delete", handle, "--like", "--bus", url)


async def test_the_tables_are_brought_up_to_date_once(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'moor.db'}"

    await moor_says(0, "upgraded from nothing", "db", "upgrade", MOOR_DB_URL=url)
    await moor_says(0, "is up to date", "db", "upgrade", "--db", url)


@pytest.mark.rabbitmq
async def test_users_have_their_rights_keep_their_passwords_and_only_an_operator_sets_hosts(
    tmp_path: Path,
) -> None:
    served = await RabbitMQUnderTest.start()
    # Other tests on this server use users with the same names: keep the existing passwords.
    credentials = tmp_path / "credentials.toml"
    credentials.write_text("".join(f'{user_of(role)} = "{PASSWORD}"\n' for role in API_ROLES))
    called, ctl = tmp_path / "called", tmp_path / "ctl"
    ctl.write_text(f'#!/bin/sh\necho "$1" >> {called}\nexec {os.environ[CTL_VARIABLE]} "$@"\n')
    ctl.chmod(0o700)
    command = (
        "broker", "declare", "--cells", "harbour", "--users", "--credentials", str(credentials),
        "--ctl", str(ctl), "--bus", served.url(),
    )  # fmt: skip

    await moor_says(0, "", *command)
    passwords = tomllib.loads(credentials.read_text())
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
    await moor_says(0, "", *command)
    assert tomllib.loads(credentials.read_text()) == passwords
    # Each call starts a virtual machine of its own, and takes seconds.
    assert called.read_text().split() == ["list_permissions", "import_definitions"] * 2

    await served.add_users((ADMIN.user,), ("harbour",))
    passwords[ADMIN.user] = PASSWORD

    def url(user: str) -> str:
        return served.url().replace("guest:guest", f"{user}:{passwords[user]}")

    async with connected(RabbitBroker(url("moor-conductor-harbour"))) as connection:
        event = Parcel(EVENTS, "instance.active.harbour", b"{}")
        assert await publish(connection, event) == [Receipt.CONFIRMED]
        with pytest.raises(AccessRefused):
            await publish(connection, Parcel(API, "build.request.-", b"{}"))

    plan, database = CloudPlan(cells={"harbour": 1}), f"sqlite+aiosqlite:///{tmp_path / 'moor.db'}"
    async with cloud(plan, served.broker(), database, as_user=lambda user: RabbitBroker(url(user))):
        await until_up(url(ADMIN.user))
        boot = ("boot", "--vcpus", "1", "--name", "web")
        await moor_says(0, "active", *boot, MOOR_BUS_URL=url(ADMIN.user))
        drain = ("host", "set", "harbour-host-00001", "draining", "--reason", "new fan")
        await moor_says(1, "the broker refused", *drain, MOOR_BUS_URL=url(ADMIN.user))
        await moor_says(0, "draining", *drain, MOOR_BUS_URL=url("moor-operator"))
        nowhere = await moor_says(1, "enabled", *boot, MOOR_BUS_URL=url(ADMIN.user))
        # Why the host is drained is an operator's note.
        assert "new fan" not in nowhere.out
    await served.close()


async def until_up(url: str) -> None:
    await until(
        lambda: moor_json("host", "list", MOOR_BUS_URL=url),
        "a host is up",
        lambda found: any(host["up"] for host in found),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The bus of a `moor up`."""
    data = tmp_path_factory.mktemp("up")
    async with started("up", "--data", str(data), "--hosts", "2", "--listen", "127.0.0.1:0") as process:
        await process.until_printed("ready")
        yield f"unix://{data}/bus.sock"
        process.send_signal(signal.SIGTERM)
        await process.ended()


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """A bus on which everything is declared and no worker runs."""
    async with closing(await UnixUnderTest.start()) as (under_test,):
        assert (await moor("broker", "declare", "--cells", "c1", "--bus", under_test.url())).code == 0
        yield under_test.url()


def request_of(ran: Result) -> str:
    (found,) = re.findall(r"^request (\S+)$", ran.err, re.MULTILINE)
    return str(UUID(found))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_decision_is_explained_after_it_was_made(bus: str) -> None:
    booted = await moor_json("boot", "--vcpus", "1", "--bus", bus)
    failed = await moor("boot", "--vcpus", "500", "--bus", bus)
    (instance,) = booted["instances"]

    for id_ in (booted["request_id"], instance["id"]):
        (explained,) = (await moor_json("explain", id_, "--bus", bus))["explanations"]
        assert (explained["chosen"], explained["hosts"] >= explained["qualified"] > 0) == (
            instance["host"],
            True,
        )
    refused = await moor("explain", request_of(failed), "--now", "--bus", bus, COLUMNS="200")
    assert "VCPU asked 500" in refused.out.partition("now:")[0]
    assert "0 more fit" in refused.out.partition("now:")[2]
    assert [(await moor("plan", "--vcpus", size, "--bus", bus)).code for size in ("1", "500")] == [0, 1]
    drained = await moor_json("campaign", "plan", "drain", instance["host"], "--bus", bus)
    assert (drained["fit"], {each["to"] for each in drained["movements"]} & {instance["host"]}) == (
        *(len(drained["movements"]), set()),
    )
    assert instance["id"] in {each["instance"] for each in drained["movements"]}
    await moor_says(1, "there is no instance and no request", "explain", str(uuid4()), "--bus", bus)


# A host of `moor up`, as an answer to a name that is like its own.
NEAR_HOST = "near it: harbour-host-00001"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_misspelt_name_or_filter_is_answered_with_those_near_it(bus: str) -> None:
    for words in (
        "aggregate create north availability_zone=north",
        "aggregate add north harbour-host-00001",
        "group create trio --policy affinity",
        "boot --vcpus 1 --name web",
    ):
        assert (await moor(*words.split(), "--bus", bus)).code == 0
    table = {
        "list --state runing": "'runing' is none of accepted, waiting, placed",
        "list --cell harbor": "there is no cell 'harbor', so nothing was done; near it: harbour",
        "host list --cell harbor": "there is no cell 'harbor'",
        "provider list --cell nowhere": "there is no cell 'nowhere'",
        "provider list --trait HW_CPU_X86_AVX3": "there is no provider with trait 'HW_CPU_X86_AVX3', so nothing was done; near it: HW_CPU_X86_AVX2",
        "boot --vcpus 1 --az nort": "no host is in zone nort; near it: north",
        "plan --vcpus 1 --az nort": "no host is in zone nort; near it: north",
        "boot --vcpus 1 --trait HW_CPU_X86_AVX512F": "no host has HW_CPU_X86_AVX512F; near it: HW_CPU_X86_AVX2",
        "boot --vcpus 1 --trait HW_CPU_X86_AVX3": "near it: HW_CPU_X86_AVX, HW_CPU_X86_AVX2",
        "boot --vcpus 1 --extra-spec trait1:HW_CPU_X86_AVX512F=required --extra-spec resources1:VCPU=1": "no host has HW_CPU_X86_AVX512F",
        "boot --vcpus 1 --host harbour-host-0001": NEAR_HOST,
        "plan --vcpus 1 --host HARBOUR-HOST-0001": NEAR_HOST,
        "migrate web --to harbour-host-0001 --no-wait": NEAR_HOST,
        "live-migrate web --to harbour-host-0001 --no-wait": NEAR_HOST,
        "resize web --vcpus 2 --to harbour-host-0001 --no-wait": NEAR_HOST,
        "evacuate harbour-host-0001 --yes": NEAR_HOST,
        "host set harbour-host-0001 draining": NEAR_HOST,
        "host show harbour-host-0001": NEAR_HOST,
        "host delete harbour-host-0001": NEAR_HOST,
        "host drain harbour-host-0001": NEAR_HOST,
        "host list --having HW_CPU_X86_AVX3": "near it: HW_CPU_X86_AVX2",
        "list --host harbour-host-0001": NEAR_HOST,
        "migration list --host harbour-host-0001": NEAR_HOST,
        "audit --host harbour-host-0001": NEAR_HOST,
        "aggregate add north harbour-host-0001": NEAR_HOST,
        "aggregate remove north harbour-host-0001": NEAR_HOST,
        "aggregate show nort": "near it: north",
        "boot --vcpus 1 --aggregate nort": "near it: north",
        "boot --vcpus 1 --group tri0": "near it: trio",
        "group show tri0": "near it: trio",
        "provider show harbour-host-0001": NEAR_HOST,
        "candidates VCPU=1 HW_CPU_X86_AVX3": "near it: HW_CPU_X86_AVX",
        "cell show harbor": "near it: harbour",
        "audit --cell harbor": "near it: harbour",
    }
    at_once = asyncio.Semaphore(3)

    async def run(words: str) -> tuple[int, str]:
        async with at_once:
            ran = await moor(*words.split(), "--bus", bus, COLUMNS="300")
        return ran.code, ran.out + ran.err

    ended = await asyncio.gather(*map(run, table))
    silent = {
        words: said
        for (words, expected), (code, said) in zip(table.items(), ended, strict=True)
        if code == 0 or expected not in said
    }
    assert silent == {}


async def test_without_workers_a_boot_shows_its_id_and_how_to_go_on(silent: str) -> None:
    boot = ("boot", "--vcpus", "1", "--timeout", "1", "--bus", silent)
    told = "no scheduler has taken the request within 1 s. It stays on the bus"
    request = request_of(ran := await moor_says(3, told, *boot))
    assert f"`moor show {request}` shows its state, `moor delete {request}` deletes it" in ran.err

    request = str(uuid4())
    ran = await moor_says(3, "", *boot, "-o", "json", "--request-id", request)
    assert json.loads(ran.out) == {"request_id": request, "instances": []}


async def test_ctrl_c_says_that_the_request_stays(silent: str) -> None:
    async with started("boot", "--vcpus", "1", "--bus", silent) as process:
        line = await process.until_printed_to_stderr("request ")
        async with connected(broker_at(silent)) as connection:
            await until(lambda: connection.depth("scheduler.requests"), "the request is on the bus")
        process.send_signal(signal.SIGINT)
        ran = await process.ended()

    assert ran.code == 130
    assert "the request stays, and will be built: " in ran.err
    assert line.split()[1] in ran.err


@pytest.mark.asyncio(loop_scope="module")
async def test_a_name_cannot_command_the_terminal(bus: str) -> None:
    booted = await moor_says(0, "", "boot", "--vcpus", "1", "--name", "\x1b[2Jred\x9b", "--bus", bus)

    said = await moor_says(0, r"\u001b[2Jred\u009b", "show", request_of(booted), "--bus", bus)
    (told,) = await moor_json("show", request_of(booted), "--bus", bus)

    assert told["name"] == "\x1b[2Jred\x9b"
    assert not {"\x1b", "\x9b"} & {*booted.out, *said.out}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("migrate", str(UUID(int=1)), "--project", "A B"), 2, "project is 'A B', and cannot be sent"),
        (("group", "create", "n" * 300, "--policy", "affinity"), 2, "name is 'nnn"),
        (("host", "set", "h", "down", "--reason", "n" * 300), 2, "reason is 'nnn"),
        (("boot", "--vcpus", "1", "--name", "n" * 300), 2, "name is 'nnn"),
        (
            ("boot", "--vcpus", "1", "--same-host", "x"),
            1,
            "there is no instance 'x', so nothing was done",
        ),
        (("campaign", "plan", "drain", "h", "--cell", "c"), 2, "--cell chooses by itself, and h is named"),
        (("campaign", "start", "drain"), 2, "no host is named"),
        (("campaign", "start", "restart", "h"), 2, "--hook is '': a restart names one"),
        (("campaign", "start", "drain", "--domain", "a//b"), 2, "--domain is 'a//b': a place is names"),
        (("budget", "set", "b", "--scope", "cloud"), 2, "a budget limits something"),
        (("budget", "set", "b", "--at-once", "2"), 2, "missing required field `scope`"),
        (("budget", "set", "--file", "/nowhere"), 2, "--file is '/nowhere'"),
        (("aggregate", "create", "a", "k=1", "k=2"), 2, "metadata gives k twice, as '1' and as '2'"),
        (("migration", "list", "--host", "h"), 1, "there is no host 'h'"),
        (("list", "--host", "h"), 1, "there is no host 'h'"),
    ],
    ids=lambda value: " ".join(value[:3])[:40] if isinstance(value, tuple) else "",
)
async def test_a_wrong_option_is_named_with_its_value_before_anything_is_sent(
    bus: str, words: tuple[str, ...], code: int, reason: str
) -> None:
    said = await moor(*words, "--bus", bus, COLUMNS="400")

    assert (said.code, reason in said.err, said.out) == (code, True, "")
