"""Applications on the real broker: the rights of their users, the events they receive, how they are added and removed."""

import asyncio
import json
import os
import secrets
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

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
from bus.workers.consuming import Subscription
from bus.workers.worker import Worker
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.guests import console_handlers
from compute_sim.handlers import ComputeStore, Fleet
from engine.flavors import InstanceId
from kit.errors import ConnectionLost, Interrupted, NotFound, Refusal
from kit.times import now
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.hosts import SimulatedHost
from tests.contracts.rabbitmq_under_test import CTL_VARIABLE, RabbitMQUnderTest, remove_users
from tests.contracts.stage import line
from tests.stories.cloud import Cloud, a_build, cloud, instance_of, until_fed
from tests.stories.moor.moor_process import Result, moor, moor_json, started
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.timeout(180)]

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


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = await RabbitBroker(url).connect()
    try:
        yield connection
    finally:
        await connection.close()


async def until_cut_off(connection: Connection) -> None:
    """Wait until the broker has closed the connection; a refused publish is not enough."""

    async def is_cut_off() -> bool:
        with suppress(ConnectionLost):
            await (await connection.open_publishing()).close()
            return False
        return True

    await until(is_cut_off, "it is cut off")


@asynccontextmanager
async def computing(setup: Cloud, instance: InstanceId) -> AsyncIterator[None]:
    """A compute of the cell, as its own user on the cell's own broker, which tells consoles: its host has this instance."""
    driver = SimulatedDriver(SimulatedHost(name=HOST))
    store, station = ComputeStore(lambda: 0.0), setup.stations_in["c1"]
    attempt = AttemptRecord(
        cell="c1", host=driver.root, instance=instance, attempt=1, state=AttemptState.BUILT
    )
    async with store.transaction() as tx:
        await tx.save([attempt])
    handlers = console_handlers(Fleet([driver], lambda: 0.0), store, now)
    async with setup.running((Worker(station, Subscription("compute.c1.questions", handlers, store)),)):
        yield


async def may_publish(url: str, exchange: str, key: str) -> bool:
    async with connected(url) as connection:
        publishing = await connection.open_publishing()
        try:
            receipt = await publishing.publish(Parcel(exchange, key, b"{}"))
        except Refusal:
            return False
        return receipt in (Receipt.CONFIRMED, Receipt.UNROUTABLE)


async def may_hear(url: str, exchange: str, key: str) -> bool:
    broker = RabbitBroker(url)
    queue = feed_queue(broker.user, secrets.token_hex(4), [Grant(exchange, (key,))])
    async with connected(url) as connection:
        try:
            await connection.declare(Objects(queues=(queue,)))
        except Refusal:
            return False
        return True


async def test_an_application_publishes_and_receives_for_its_own_projects_only(tmp_path: Path) -> None:
    async with operator_access(tmp_path) as (_, operator, names):
        url = await operator.add(a_name(names), "--project", "p1", "--project", "p-2")

        keys = ("build.request", "instance.delete", "instance.query", "plan.query", "explain.query")
        for key in (*keys, "console.query", "flavor.query", "image.query"):
            for project in ("p1", "p-2"):
                assert await may_publish(url, API, f"{key}.{project}"), (key, project)
            for project in ("p3", "p11", "xp1", NO_PROJECT, "p1.x", "*", "#"):
                assert not await may_publish(url, API, f"{key}.{project}"), (key, project)
        assert await may_publish(url, PLACEMENT, "usages.query.p1")
        assert await may_publish(url, PLACEMENT, "quota.query.p1")
        for key in (
            *("quota.query.p3", "quota.query.-", "quota.set"),
            *("usages.query.p3", "snapshot", "revisions", "holders.query", "consumer.query", "names.query"),
            *("candidates", "provider.create", "claim.c1", "release.c1"),
        ):
            assert not await may_publish(url, PLACEMENT, key), key
        for key in (
            *("host.set", "host.query", "application.set", "application.query"),
            *("flavor.create", "flavor.delete", "image.create", "image.set", "image.delete"),
            *("device.profile.create", "device.profile.delete"),
            *("reasons.query", "capability.query", "drain.query"),
        ):
            assert not await may_publish(url, API, key), key
        for exchange in (EVENTS, FEED, "", "moor.dead", "moor.cell.c1", "moor.retry.scheduler"):
            assert not await may_publish(url, exchange, "p1"), exchange

        assert await may_hear(url, FEED, "p1")
        for exchange, key in ((FEED, "p3"), (FEED, "*"), (FEED, "#"), (EVENTS, "instance.#"), (EVENTS, "p1")):
            assert not await may_hear(url, exchange, key), (exchange, key)


async def test_commands_of_an_application_find_only_its_own_project(tmp_path: Path) -> None:
    async with operator_access(tmp_path) as (setup, operator, names):
        url = await operator.add(a_name(names), "--project", "p1")
        other = await setup.boot(1, project="p3")
        mine = {"MOOR_BUS_URL": url, "MOOR_PROJECT": "p1"}
        async with setup.listening("p1", exchange=FEED) as fed:
            await until_fed(setup, "p1", fed)

        async with started("events", "instance.#", "build.accepted", "-o", "json", **mine) as events:
            await events.until_printed_to_stderr("listening")
            booted = await moor_json("boot", "--vcpus", "1", **mine)
            (instance,) = booted["instances"]
            assert (instance["state"], instance["project"]) == ("active", "p1")
            assert [each["id"] for each in await moor_json("list", **mine)] == [instance["id"]]
            assert (await moor_json("show", instance["id"], **mine))[0]["state"] == "active"
            async with computing(setup, InstanceId(UUID(instance["id"]))):
                console = await moor("console", instance["id"], **mine)
            assert console.out == f"{HOST}: the simulated guest of attempt 1 has started\n", console.err
            hidden = await moor("console", str(other.id), **mine)
            assert (hidden.code, "there is no instance" in hidden.err) == (1, True), hidden
            (deleted,) = await moor_json("delete", instance["id"], "--wait", **mine)
            assert deleted["state"] == "deleted"
            # How many states are told depends on how quickly one follows another.
            heard = [json.loads(await events.until_printed(""))]
            while heard[-1]["type"] != "instance.deleted":
                heard.append(json.loads(await events.until_printed("")))

        hidden = await moor("show", str(other.id), **mine)
        assert (hidden.code, "there is no instance" in hidden.err) == (1, True), hidden.err
        untouched = await moor("delete", str(other.id), **mine)
        assert untouched.code == 1
        refused = await moor("list", MOOR_BUS_URL=url, MOOR_PROJECT="p3")
        assert (refused.code, "the broker refused" in refused.err) == (1, True), refused.err
        state = await setup.instance(other.id)
        assert state is not None
        assert state.state == "active"
        assert {each["type"] for each in heard} >= {"build.accepted", "instance.active"}
        projects = {each.get("project") or each["instance"]["project"] for each in heard}
        assert projects == {"p1"}


async def test_an_admin_application_acts_for_all_projects_but_is_no_operator(tmp_path: Path) -> None:
    async with operator_access(tmp_path) as (setup, operator, names):
        url = await operator.add(a_name(names), "--admin")
        build = await setup.boot(1, project="p3")

        listed = await moor_json("list", MOOR_BUS_URL=url)
        booted = await moor_json("boot", "--vcpus", "1", "--project", "p9", MOOR_BUS_URL=url)

        assert [each["id"] for each in listed] == [str(build.id)]
        assert booted["instances"][0]["state"] == "active"
        assert not await may_publish(url, API, "host.set")
        assert not await may_publish(url, PLACEMENT, "snapshot")


async def test_a_removed_application_is_disconnected_and_cannot_connect_again(tmp_path: Path) -> None:
    async with operator_access(tmp_path) as (_, operator, names):
        name = a_name(names)
        url = await operator.add(name, "--project", "p1")
        # Lists the applications that the schedulers know.
        listed = await operator.command("list", "-o", "json", ctl=False)
        assert {"name": name, "projects": ["p1"]}.items() <= json.loads(listed.out)[0].items()
        async with connected(url) as connection:
            publishing = await connection.open_publishing()
            for exchange in (API, application_exchange(name)):
                order = Parcel(exchange, "build.request.p1", b"{}", mandatory=True)
                assert await publishing.publish(order) is Receipt.CONFIRMED

            removed = await operator.command("delete", name)

            assert removed.code == 0, removed.err
            await until_cut_off(connection)
        with pytest.raises((Interrupted, Refusal)):
            await RabbitBroker(url).connect()
        assert json.loads((await operator.command("list", "-o", "json", ctl=False)).out) == []
        assert f"moor-app-{name}" not in tomllib.loads(operator.credentials.read_text())
        async with connected(operator.under_test.url(user_of("operator"))) as connection:
            for queue in API_QUEUES:
                with pytest.raises(NotFound):
                    await connection.depth(application_queue(queue, name))
        again = await operator.command("delete", name)
        assert (again.code, "there was no user" in again.out) == (0, True), again.err


async def test_an_application_boots_by_the_exchange_that_it_got_and_no_other_one_can_write_there(
    tmp_path: Path,
) -> None:
    async with operator_access(tmp_path) as (setup, operator, names):
        one, other = a_name(names), a_name(names)
        mine, theirs = [await operator.add(name, "--project", "p1") for name in (one, other)]
        build = a_build(1, project="p1")
        order = Parcel(application_exchange(one), "build.request.p1", line(build), mandatory=True)

        assert not await may_publish(theirs, order.exchange, order.routing_key)
        async with connected(mine) as connection:
            publishing = await connection.open_publishing()
            assert await publishing.publish(order) is Receipt.CONFIRMED

        await setup.until_state(instance_of(build), "active")


async def test_with_other_projects_an_application_keeps_its_password_and_loses_its_old_rights(
    tmp_path: Path,
) -> None:
    async with operator_access(tmp_path) as (_, operator, names):
        name = a_name(names)
        url = await operator.add(name, "--project", "p1")
        async with connected(url) as connection:
            publishing = await connection.open_publishing()
            assert await publishing.publish(Parcel(API, "instance.delete.p1", b"{}")) is Receipt.CONFIRMED

            assert await operator.add(name, "--project", "p2") == url

            # RabbitMQ caches what it allowed a channel before, so the connection is closed.
            await until_cut_off(connection)
        assert not await may_publish(url, API, "instance.delete.p1")
        assert await may_publish(url, API, "instance.delete.p2")
