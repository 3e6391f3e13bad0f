"""Applications on the real broker: the rights of their users, how they are added and removed; and every command that asks the bus, run as such a
user: it works, or says what to do instead, and none tells anything of hosts but those of the project's own instances.
"""

import asyncio
import json
import os
import re
import secrets
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from bus.broker import Connection, Receipt
from bus.message import Parcel
from bus.rabbit import RabbitBroker
from bus.topology import (
    API,
    API_QUEUES,
    EVENTS,
    FEED,
    NO_PROJECT,
    PLACEMENT,
    Grant,
    Objects,
    application_exchange,
    application_queue,
    feed_queue,
    user_of,
)
from kit.errors import ConnectionLost, Interrupted, NotFound, Refusal
from moor.client import Client
from moor.commands import names as names_of_commands
from tests.contracts.rabbitmq_under_test import CTL_VARIABLE, RabbitMQUnderTest, remove_users
from tests.contracts.small_world import connected, publish
from tests.contracts.stage import line
from tests.stories.cloud import Cloud, a_build, cloud, instance_of
from tests.stories.moor.moor_process import Result, moor, moor_json, moor_says, started
from tests.waiting import until

STAGE = ("rabbitmq, a broker a cell", "memory")
HOST = "h1"


class OperatorAccess:
    """An operator's access: the broker of the API level, and the file of passwords."""

    def __init__(self, setup: Cloud, credentials: Path) -> None:
        assert isinstance(setup.brokers.api, RabbitMQUnderTest)
        self.setup, self.under_test = setup, setup.brokers.api
        self.credentials = credentials

    async def command(self, *arguments: str, user: str = user_of("operator"), ctl: bool = True) -> Result:
        how = ("--ctl", os.environ[CTL_VARIABLE], "--credentials", str(self.credentials)) if ctl else ()
        ran = await moor("application", *arguments, *how, MOOR_BUS_URL=self.under_test.url(user))
        # On a busy machine this takes a minute, after which a host that nobody heard is down.
        await self.setup.add_host(HOST, vcpu=16)
        return ran

    async def add(self, name: str, *flags: str) -> str:
        """Add an application; returns its URL."""
        ran = await self.command("create", name, *flags)
        assert ran.code == 0, ran.err + ran.out
        return self.url(name)

    def url(self, name: str) -> str:
        user = f"moor-app-{name}"
        password = tomllib.loads(self.credentials.read_text())[user]
        everyone = self.under_test.url().removeprefix("amqp://").partition("@")[0]
        return self.under_test.url().replace(everyone, f"{user}:{password}")


@asynccontextmanager
async def operator_access(tmp_path: Path) -> AsyncIterator[tuple[Cloud, OperatorAccess, list[str]]]:
    """A cloud in which each worker has its own user. The applications whose names a test adds to the list are removed
    at the end.
    """
    names: list[str] = []
    async with cloud(*STAGE) as setup, setup.placement(), setup.scheduler():
        await setup.add_hosts(HOST, vcpu=16)
        try:
            yield setup, OperatorAccess(setup, tmp_path / "credentials.toml"), names
        finally:
            await asyncio.to_thread(remove_users, [f"moor-app-{name}" for name in names])


def a_name(names: list[str]) -> str:
    """Users belong to the server, which other tests use as well."""
    names.append(f"t{secrets.token_hex(6)}")
    return names[-1]


async def until_cut_off(connection: Connection) -> None:
    """Wait until the broker has closed the connection; a refused publish is not enough."""

    async def is_cut_off() -> bool:
        with suppress(ConnectionLost):
            await (await connection.open_publishing()).close()
            return False
        return True

    await until(is_cut_off, "it is cut off")


async def may_publish(url: str, exchange: str, key: str) -> bool:
    async with connected(RabbitBroker(url)) as connection:
        try:
            (receipt,) = await publish(connection, Parcel(exchange, key, b"{}"))
        except Refusal:
            return False
        return receipt in (Receipt.CONFIRMED, Receipt.UNROUTABLE)


async def may_hear(url: str, exchange: str, key: str) -> bool:
    broker = RabbitBroker(url)
    queue = feed_queue(broker.user, secrets.token_hex(4), [Grant(exchange, (key,))])
    async with connected(broker) as connection:
        try:
            await connection.declare(Objects(queues=(queue,)))
        except Refusal:
            return False
        return True


@pytest.mark.rabbitmq
@pytest.mark.timeout(300)
async def test_an_application_has_the_rights_of_its_own_projects_until_it_is_removed(tmp_path: Path) -> None:
    async with operator_access(tmp_path) as (setup, operator, names):
        name, another, admin = a_name(names), a_name(names), a_name(names)
        url = await operator.add(name, "--project", "p1", "--project", "p-2")
        theirs = await operator.add(another, "--project", "p1")
        # Of each exchange one key; which keys there are is said by the golden file of all rights.
        for project in ("p1", "p-2"):
            assert await may_publish(url, API, f"build.request.{project}"), project
        for project in ("p3", "p11", "xp1", NO_PROJECT, "p1.x", "*", "#"):
            assert not await may_publish(url, API, f"build.request.{project}"), project
        assert await may_publish(url, PLACEMENT, "usages.query.p1")
        assert not await may_publish(url, PLACEMENT, "usages.query.p3")
        assert await may_hear(url, FEED, "p1")
        for exchange, key in ((FEED, "p3"), (FEED, "*"), (FEED, "#"), (EVENTS, "instance.#"), (EVENTS, "p1")):
            assert not await may_hear(url, exchange, key), (exchange, key)

        other = await setup.boot(2, project="p3")
        for word in ("show", "console", "delete"):
            await moor_says(
                1, "there is no instance", word, str(other.id), MOOR_BUS_URL=url, MOOR_PROJECT="p1"
            )
        await moor_says(1, "the broker refused", "list", MOOR_BUS_URL=url, MOOR_PROJECT="p3")

        # It boots by the exchange that it got, and no other one can write there.
        build = a_build(1, project="p1")
        order = Parcel(application_exchange(name), "build.request.p1", line(build), mandatory=True)
        assert not await may_publish(theirs, order.exchange, order.routing_key)
        async with connected(RabbitBroker(url)) as connection:
            assert await publish(connection, order) == [Receipt.CONFIRMED]
            await setup.until_state(instance_of(build), "active")

            # With other projects it keeps its password, and loses its old rights. RabbitMQ caches what it allowed a channel before,
            # so the connection is closed.
            assert await operator.add(name, "--project", "p2") == url
            await until_cut_off(connection)
        assert not await may_publish(url, API, "instance.delete.p1")
        assert await may_publish(url, API, "instance.delete.p2")

        # An admin acts for all projects, and is no operator.
        root = await operator.add(admin, "--admin")
        await moor_says(0, "active", "boot", "--vcpus", "1", "--project", "p9", MOOR_BUS_URL=root)
        assert {each["project"] for each in await moor_json("list", MOOR_BUS_URL=root)} == {"p1", "p3", "p9"}
        assert not await may_publish(root, API, "host.set")
        assert not await may_publish(root, PLACEMENT, "snapshot")

        listed = json.loads((await operator.command("list", "-o", "json", ctl=False)).out)
        assert {(each["name"], *each["projects"]) for each in listed} >= {(name, "p2"), (another, "p1")}
        async with connected(RabbitBroker(url)) as connection:
            assert (await operator.command("delete", name)).code == 0
            await until_cut_off(connection)
        with pytest.raises((Interrupted, Refusal)):
            await RabbitBroker(url).connect()
        left = json.loads((await operator.command("list", "-o", "json", ctl=False)).out)
        assert name not in {each["name"] for each in left}
        assert f"moor-app-{name}" not in tomllib.loads(operator.credentials.read_text())
        async with connected(operator.under_test.broker(user_of("operator"))) as connection:
            for queue in API_QUEUES:
                with pytest.raises(NotFound):
                    await connection.depth(application_queue(queue, name))
        again = await operator.command("delete", name)
        assert (again.code, "there was no user" in again.out) == (0, True), again.err


# They ask no bus, or are for who runs the cloud.
OF_OPERATORS = {"up", "demo", "load", "replay", "run", "settings", "db", "nova", "broker", "dead"}
# The hosts have more room than `HOST`, so their amounts are nowhere else; the project's instance is on `HOST`.
VAULT, SPARE, NOTE = "vault-17", "spare-18", "fan swap by ann"
# An amount counts by itself: ids and times have the same digits in them.
SECRET = re.compile(rf"{VAULT}|{SPARE}|{NOTE}|(?<![\w.-])(?:7919|7907|7918|7906)(?![\w-])")

# By command: the exit code, and a part of what is printed.
WORKS: Mapping[str, tuple[int, str]] = {
    "boot --vcpus 8000 --name no": (1, "no host for no among 3"),
    "boot --vcpus 1 --trait CUSTOM_NOPE": (1, "no host has CUSTOM_NOPE"),
    f"boot --vcpus 8000 --host {VAULT} --name there": (1, "no host for there"),
    "plan --vcpus 8000": (1, "0 more fit on 0 of 3 hosts"),
    "plan --vcpus 7910 --trait CUSTOM_NOPE": (1, "no host has CUSTOM_NOPE"),
    "explain web": (0, HOST),
    "explain big --now": (0, "with less VCPU than 8000"),
    "show web": (0, HOST),
    "show big": (0, "no host for big among 3"),
    "show nonesuch": (1, "there is no instance"),
    "instance show web": (0, HOST),
    "list": (0, HOST),
    "instance list --state error": (0, "big"),
    "history web": (0, HOST),
    "history big": (0, "no valid host"),
    "resize web --vcpus 8000 --no-wait": (1, "removed by capacity"),
    f"migrate web --to {VAULT} --no-wait": (1, "no valid host"),
    "live-migrate web --to nonesuch --no-wait": (1, "nonesuch: no host of this name is known"),
    f"live-migrate web --to {VAULT[:-1]} --no-wait": (1, "no host of this name is known"),
    "shelve nonesuch": (1, "there is no instance"),
    "unshelve web --no-wait": (1, "to unshelve"),
    "start web --no-wait": (0, ""),
    "stop nonesuch": (1, "there is no instance"),
    "reboot nonesuch": (1, "there is no instance"),
    "rebuild web --image nonesuch": (1, "nonesuch"),
    "console nonesuch": (1, "there is no instance"),
    "delete nonesuch": (1, "nonesuch"),
    "migration confirm web": (1, "web"),
    "group create pair --policy anti-affinity": (0, "pair"),
    "group list": (0, "trio"),
    "group show trio": (0, "trio"),
    "flavor list": (0, ""),
    "image list": (0, ""),
    "device-profile list": (0, ""),
    "quota usage shop": (0, "VCPU"),
    "quota show shop": (1, "there is no quota of project"),
}
FOR_ADMINS = "operators and admin applications"
REFUSED: Mapping[str, str] = {
    "plan --vcpus 1 --hosts": FOR_ADMINS,
    f"campaign plan drain {SPARE}": FOR_ADMINS,
    "balance plan --goal even": FOR_ADMINS,
    "campaign list": FOR_ADMINS,
    f"campaign start drain {SPARE}": "operators",
    "budget set b --scope cloud --at-once 2": "operators",
    "policy list": FOR_ADMINS,
    "policy set cloud --guests evacuate": "operators",
    "question list": FOR_ADMINS,
    "list --project bank": "name a project of this application",
    "quota usage bank": "name a project of this application",
    "candidates VCPU=1": FOR_ADMINS,
    "migration list": FOR_ADMINS,
    "host list": FOR_ADMINS,
    f"host show {SPARE}": FOR_ADMINS,
    "host capabilities": FOR_ADMINS,
    f"host set {SPARE} down": "operators",
    f"evacuate {SPARE}": "operators",
    "cell list": FOR_ADMINS,
    "aggregate list": FOR_ADMINS,
    "provider list": "operators",
    "quota list": "name a project of this application",
    "quota set shop VCPU=1": "operators",
    "flavor create m9 --vcpus 1": "operators",
    "audit": "operators",
    "status": "operators",
    "capacity": "operators",
    "events host.#": "operators",
    "events instance.# --project bank": "operators",
    "node list": "",
    "top": "",
    "application list": "operators",
}


async def prepared(setup: Cloud, operator: OperatorAccess, names: list[str]) -> dict[str, str]:
    """An application's variables: its project has an instance, one that found no host, and a group."""
    url = await operator.add(a_name(names), "--project", "shop")
    mine = {"MOOR_BUS_URL": url, "MOOR_PROJECT": "shop"}
    await moor_json("boot", "--vcpus", "1", "--name", "web", **mine)
    for name, vcpu in ((VAULT, 7919), (SPARE, 7907)):
        await setup.add_host(name, vcpu=vcpu)
    await setup.until_reported(VAULT, SPARE)
    async with Client(setup.brokers.at_api("operator"), project="") as root:
        await root.set_host(VAULT, "draining", reason=NOTE)
    await moor("boot", "--vcpus", "8000", "--name", "big", **mine)
    await moor("group", "create", "trio", "--policy", "affinity", **mine)
    return mine


@pytest.mark.rabbitmq
@pytest.mark.timeout(400)
async def test_each_command_of_an_application_works_or_says_what_to_do_and_tells_nothing_of_other_hosts(
    tmp_path: Path,
) -> None:
    covered = {each.split()[0] for each in (*WORKS, *REFUSED)}
    assert covered | OF_OPERATORS == {*names_of_commands()}
    async with operator_access(tmp_path) as (setup, operator, names):
        mine = await prepared(setup, operator, names)
        at_once = asyncio.Semaphore(3)
        wrong: list[str] = []

        async def run(line: str, *form: str) -> Result:
            async with at_once, started(*line.split(), *form, **mine) as process:
                try:
                    ran = await process.ended(within_s=45)
                except TimeoutError:
                    ran = Result(-1, "", "it does not end")
            told = (ran.out + ran.err).replace(line, "").replace(f"'{VAULT}'", "").replace(f"'{SPARE}'", "")
            wrong.extend(f"{line} {form} tells {each}: {told}" for each in {*SECRET.findall(told)})
            return ran

        async def judge(line: str, code: int | None, part: str) -> None:
            """Without a code it must be refused, with a reason."""
            ran = await run(line)
            told = ran.out + ran.err
            is_right = ran.code == code if code is not None else ran.code and told and "Traceback" not in told
            if not is_right or part not in told:
                wrong.append(f"{line}: {ran}")
            if code is not None:
                await run(line, "-o", "json")

        async with asyncio.TaskGroup() as tasks:
            for line, (code, part) in WORKS.items():
                tasks.create_task(judge(line, code, part))
            for line, part in REFUSED.items():
                tasks.create_task(judge(line, None, part))

    assert not wrong, "\n".join(wrong)
