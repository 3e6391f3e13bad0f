"""Every message, with every foreign value in every field that names something, from the users of a project and of a cell.

The bank has an instance on a host of cell c2, beside another project and another cell. None of these messages changes anything of
the bank's or of c2's: not in placement's rows, nor in those of the API level, nor in a picture, nor on a feed, nor by an order to c2.
API-level roles and operators are not attackers here: they may speak for every cell and project.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

import pytest
from msgspec import Struct

from bus.codec import encode
from bus.message import LINES, REPLY, Envelope, Message, Parcel, type_of
from bus.messages.build import BuildInstance, DeleteInstance
from bus.messages.hosts import AskHosts, HostImages, HostMetrics, HostsFound, HostsMeasured, ImagesCached
from bus.messages.placement import ClaimResources, SwapClaim
from bus.messages.projects import CreateGroup, SetApplication
from bus.queues import FEED
from bus.topology import destination_of, user_of
from engine.flavors import Flavor, InstanceId, JoinedGroup
from engine.inventories import ConsumerId, GroupId, ResourceAmount, ServerGroup, Share
from engine.picture.picture import Picture
from scheduler_worker.store_sql import GroupQuery, HostQuery, InstanceQuery
from tests.contracts.broker_under_test import SHOP
from tests.contracts.memory_under_test import topology_rights
from tests.contracts.stage import CELLS, send
from tests.stories.cloud import SMALL, Cloud, a_build, a_host, cloud_on, instance_of, until_fed
from tests.stories.layouts import ONE_BROKER, one_broker_with_users
from tests.stories.scripted import host_id
from tests.unit.examples import EXAMPLES
from tests.waiting import until
from tools.pages.identity_fields import as_of_now, leaves_of, without_options

OWN, THEIR_CELL = "c1", "c2"
ATTACKERS = (user_of("conductor", OWN), user_of("compute", OWN), SHOP.user)
# An attacker may know what the bank's instance is called, and by which attempts it is claimed now and next.
ATTEMPTS = (1, 2)
BANKS_GROUP = GroupId(UUID(int=4711))
OWN_NAMES: dict[str, object] = {"cell": OWN, "project": "shop", "host": "o1", "provider": host_id("o1")}


class Bank(Struct, frozen=True):
    """What belongs to the bank and to c2, by kinds of names."""

    instance: InstanceId
    build: BuildInstance
    group: CreateGroup
    # Another project's, in the cell of the attackers.
    other: InstanceId

    @property
    def names(self) -> dict[str, object]:
        return {
            "instance": self.instance,
            "provider": host_id("v1"),
            "group": self.group.id,
            "request": self.build.request_id,
            "cell": THEIR_CELL,
            "project": "bank",
            "host": "v1",
        }


class Attack(Struct, frozen=True):
    message: Message
    # The field with the foreign value; several, if all fields that can have one.
    paths: tuple[str, ...]
    # The message with names of the attacker alone, which counts.
    own: Message

    def parcels(self, broker_allows: Any) -> Iterator[Parcel]:
        """The message under its own key, and behind the attacker's own one under that of its cell or project, if the broker lets it pass."""
        to, forged = destination_of(self.message), encode(Envelope(message=self.message, id="forged"))
        own_key = destination_of(self.own).routing_key
        if broker_allows(to.exchange, to.routing_key):
            yield Parcel(to.exchange, to.routing_key, forged)
        if broker_allows(to.exchange, own_key):
            own = encode(Envelope(message=self.own, id="own"))
            yield Parcel(to.exchange, own_key, own + b"\n" + forged, content_type=LINES)


def attacks(bank: Bank, now: datetime) -> Iterator[Attack]:
    for example in EXAMPLES:
        if example.ROUTE.exchange != REPLY:
            for attempt in ATTEMPTS:
                for message in (example, without_options(example)):
                    yield from _attacks(bank, as_of_now(message, now, attempt))


def joins(bank: Bank, now: datetime) -> Iterator[Attack]:
    """The bank's server group, under its own policy and under others, in claims and swaps that are granted without it."""
    order = bank.group
    for number, policy in enumerate((order.policy, "affinity", "soft-affinity")):
        group = ServerGroup(id=order.id, policy=policy, max_per_host=order.max_per_host)
        share = Share(
            host=host_id("o1"),
            amounts=(ResourceAmount(provider=host_id("o1"), resource="VCPU", amount=1),),
        )
        claim = ClaimResources(
            cell=OWN,
            consumer=ConsumerId(uuid5(bank.instance, str(number))),
            attempt=1,
            issued_at=now,
            share=share,
            project="shop",
            group=group,
        )
        yield Attack(claim, ("group.id",), claim)
        swap = SwapClaim(
            cell=OWN,
            consumer=ConsumerId(bank.other),
            held_attempt=1,
            attempt=2,
            issued_at=now,
            share=share,
            group=group,
        )
        yield Attack(swap, ("group.id",), swap)


def _attacks(bank: Bank, message: Message) -> Iterator[Attack]:
    """One field after another is foreign and all others are the attacker's; then all are, but for its own key; then all are."""
    foreign, own = bank.names, OWN_NAMES
    mine = _with(message, own, {leaf.path for leaf in leaves_of(message) if leaf.kind in own})
    if mine is None:
        return
    paths = list(dict.fromkeys(leaf.path for leaf in leaves_of(mine)))
    ends = {"cell", "project"}
    for some in (*({path} for path in paths), {*paths} - ends, {*paths}):
        forged = _with(mine, foreign, some)
        if forged is not None:
            yield Attack(forged, tuple(sorted(some)), mine)


def _with(message: Message, names: dict[str, object], paths: set[str]) -> Message | None:
    """The message with these values in these fields; None if no such message can be made."""
    for path in sorted(paths):
        for leaf in [each for each in leaves_of(message) if each.path == path]:
            try:
                message = leaf.with_value(names[leaf.kind])
            except (ValueError, KeyError):
                return None
            break
    return message


@asynccontextmanager
async def two_projects(bus: str, books: str) -> AsyncIterator[Cloud]:
    async with AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(one_broker_with_users(bus, SHOP.user))
        setup = await stack.enter_async_context(cloud_on(brokers, books))
        await stack.enter_async_context(setup.placement())
        await stack.enter_async_context(setup.scheduler())
        yield setup


async def a_bank(setup: Cloud) -> Bank:
    await setup.add_host("o1", OWN)
    # The bank takes the whole of it, so that no build of another project has a right to be there.
    await setup.add_host("v1", THEIR_CELL, vcpu=64)
    await setup.add_host("v2", THEIR_CELL, vcpu=1_000_000)
    await setup.until_registered("o1", "v1", "v2")
    await setup.client.ask(SetApplication(name="shop", projects=("shop",)))
    await setup.client.ask(SetApplication(name="teller", projects=("bank",)))
    group = CreateGroup(id=BANKS_GROUP, name="vaults", policy="anti-affinity", project="bank")
    await setup.client.ask(group)
    build = a_build(
        1,
        project="bank",
        flavor=Flavor(name="whole", vcpus=64),
        hosts=("v1",),
        group=JoinedGroup(id=group.id),
    )
    await setup.send(build)
    instance = instance_of(build)
    await setup.until_state(instance, "active")
    other = await setup.boot(5, project="shop", flavor=SMALL, hosts=("o1",))
    await a_host_that_tells_all(setup)
    return Bank(instance, build, group, other.id)


async def a_host_that_tells_all(setup: Cloud) -> None:
    """The bank's host has sent its metrics, and which images it has cached."""
    metrics = HostMetrics(id=host_id("v1"), values={"temperature": 20.5})
    images = HostImages(id=host_id("v1"), images=("vault-os",))
    of_cell = setup.stations_in[THEIR_CELL].publisher
    await of_cell.send(HostsMeasured(cell=THEIR_CELL, hosts=(metrics,), sequence=1))
    await of_cell.send(ImagesCached(cell=THEIR_CELL, hosts=(images,), sequence=1))
    await until(
        lambda: _measured(setup.pictures[0]) == ({"temperature": 20.5}, True),
        "the metrics and images of the bank's host are known",
    )


async def of_the_bank(setup: Cloud) -> dict[str, object]:
    """All that belongs to the bank, and its host, wherever it is kept."""
    entries = await setup.books.books_page(None, 1000)
    providers = (await setup.books.snapshot_page(0, 1000)).providers
    hosts = await setup.rows.hosts(HostQuery())
    # With the time when each was last heard.
    heard = await setup.ask(AskHosts(), HostsFound)
    instances = await setup.rows.instances(InstanceQuery(project="bank", limit=1000))
    orders = setup.cells[THEIR_CELL]
    ids = {each.told.id for each in instances}
    return {
        "consumers": [each for each in entries if each.project == "bank"],
        "providers": [each for each in providers if each.name == "v1"],
        "members": [each for each in entries if each.group == BANKS_GROUP],
        "instances": instances,
        "heard": [each for each in heard.hosts if each.cell == THEIR_CELL and each.name == "v1"],
        "hosts": [each for each in hosts if each.cell == THEIR_CELL and each.name == "v1"],
        "groups": await setup.rows.groups(GroupQuery(project="bank")),
        "applications": await setup.rows.applications(),
        "orders": [each for each in (*orders.placed, *orders.removed) if each.instance in ids],
        "picture": _pictured(setup.pictures[0]),
    }


def _pictured(picture: Picture) -> list[object]:
    rows = [*picture.rows_named("v1")]
    known = [host for host in map(picture.registered, rows) if host is not None and host.cell == THEIR_CELL]
    members = [*picture.groups.of_group(BANKS_GROUP)]
    return [
        *known,
        picture.is_up(THEIR_CELL, "v1"),
        picture.placed_in(host_id("v1")),
        _measured(picture),
        members,
    ]


def _measured(picture: Picture) -> tuple[dict[str, float], bool]:
    """The metrics of the bank's host, and whether the picture knows that it has cached the bank's image."""
    (row,) = picture.rows_named("v1")
    metrics = {name: float(column[row]) for name, column in picture.columns.metrics.items()}
    return metrics, bool(picture.columns.images.having("vault-os", row + 1)[row])


async def until_all_is_read(setup: Cloud, number: int) -> None:
    """All workers have read what was sent before: a build of a third project passes through all queues of orders and events,
    and a report through that of reports.
    """
    await setup.report(a_host("v2", THEIR_CELL, vcpu=1_000_000 + number))
    await setup.boot(number, project="yard", flavor=SMALL, hosts=("v2",))
    await setup.until_current()


@pytest.mark.hits("cell %s reports host %s of another cell", "message ignored: %s")
@ONE_BROKER
async def test_no_message_with_a_foreign_value_changes_anything_of_anothers(bus: str, books: str) -> None:
    async with two_projects(bus, books) as setup:
        bank = await a_bank(setup)
        async with setup.listening("bank", exchange=FEED) as heard:
            await until_fed(setup, "bank", heard)
            await until_all_is_read(setup, 2)
            heard.clear()
            before = await of_the_bank(setup)
            now = datetime.now(UTC)
            sent = await attack(setup, [*joins(bank, now), *attacks(bank, now)])
            await until_all_is_read(setup, 3)
            after = await of_the_bank(setup)

            for what, was in before.items():
                assert after[what] == was, what
            assert heard == []
        # The bank goes on.
        await setup.send(DeleteInstance(instance=bank.instance, project="bank"))
        await setup.until_state(bank.instance, "deleted")
        assert {user for user, _ in sent} == {*ATTACKERS}
        assert sum(sent.values()) > 500


async def attack(setup: Cloud, all_: Sequence[Attack]) -> Counter[tuple[str, str]]:
    """Send what the broker lets pass, and count it by its user and its type."""
    sent: Counter[tuple[str, str]] = Counter()
    for user in ATTACKERS:
        rights = topology_rights(user, CELLS)
        parcels = [(type_of(each.message), one) for each in all_ for one in each.parcels(rights.may_publish)]
        await send(setup.brokers.api.broker(user), *[parcel for _, parcel in parcels])
        sent.update((user, kind) for kind, _ in parcels)
    return sent
