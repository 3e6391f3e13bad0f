"""Each user of the real broker, with its password and a bare AMQP client, tries to act with another user's authority.

Real workers are at the other end. None of the attempts may change anything, stop a worker, or be answered; and boots
continue meanwhile.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from uuid import UUID, uuid4

import aio_pika
import pytest
import pytest_asyncio
from aio_pika.abc import AbstractExchange

from bus.codec import encode
from bus.message import Envelope, Message
from bus.messages.build import BuildInstance, DeleteInstance
from bus.messages.hosts import SetHost
from bus.messages.placement import LogPosition, ProvidersChanged, ReleaseClaim, SnapshotPage
from bus.topology import API, EVENTS, PLACEMENT, user_of
from bus.workers.dead_letters import DeadLetter, open_dead_letters
from engine.flavors import Flavor, InstanceId, RequestId, instance_id_of
from kit.clock import now
from tests.adversity.real_cloud import RealCloud, real_cloud
from tests.contracts.broker_under_test import ADMIN, SHOP
from tests.contracts.small_world import connected
from tests.contracts.stage import dead_letters
from tests.waiting import until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.rabbitmq,
    pytest.mark.postgresql,
    pytest.mark.timeout(240),
]

CELL, OTHER = "harbour", "island"
SMALL = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1)
CONDUCTOR, COMPUTE = user_of("conductor", CELL), user_of("compute", CELL)


class Cloud:
    """A cloud with one running instance of the project `bank`, to which no user here has a right."""

    def __init__(self, here: RealCloud) -> None:
        self.here = here
        self.theirs = InstanceId(UUID(int=0))
        self.host = ""

    async def boot(self, project: str) -> InstanceId:
        request = RequestId(uuid4())
        await self.here.client.ask(BuildInstance(request_id=request, flavor=SMALL, project=project))
        instance = instance_id_of(request, 0)
        self.host = (await self.here.until_state(instance, "active")).host
        return instance

    async def is_untouched(self) -> None:
        """The bank's instance runs and holds its share, all hosts are in use, and boots still work."""
        (state,) = await self.here.rows(f"SELECT state FROM requested_instances WHERE id = '{self.theirs}'")  # noqa: S608
        assert state == ("active",)
        held = await self.here.rows(
            f"SELECT count(*) FROM holders h JOIN consumers c ON c.id = h.consumer_id WHERE c.uuid = '{self.theirs}'"  # noqa: S608
        )
        # On its host alone: a swap or a doubled claim would add a row, a release would end it.
        assert held == [(1,)]
        assert all(host.setting.mode == "up" for host in await self.here.hosts())
        await self.boot("shop")

    async def letters(self, count: int) -> list[DeadLetter]:
        return await dead_letters(self.here.under_test.broker(), count)


async def has_providers(here: RealCloud, count: int) -> bool:
    """A host's facts may arrive before placement has its first report."""
    return len((await here.books.snapshot_page(0, 100)).providers) >= count


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers() -> AsyncIterator[RealCloud]:
    """All workers of two cells. The tests share them: no test may disturb them."""
    async with real_cloud(CELL, OTHER, HOSTS_PER_CELL="2") as here:
        await here.under_test.add_users((SHOP.user,), (CELL, OTHER))
        in_cells = [f"{kind}-{cell}" for kind in ("conductor", "compute") for cell in (CELL, OTHER)]
        await here.start("placement-1", "scheduler-1", *in_cells)
        await here.until_up(4)
        await until(lambda: has_providers(here, 4), "placement has the hosts")
        yield here


@pytest_asyncio.fixture(loop_scope="module")
async def cloud(workers: RealCloud) -> AsyncIterator[Cloud]:
    """At the end of each test nothing has changed."""
    await forget_letters(workers)
    cloud = Cloud(workers)
    cloud.theirs = await cloud.boot("bank")
    yield cloud
    await cloud.is_untouched()


async def forget_letters(here: RealCloud) -> None:
    """Drop the dead letters of the previous test."""
    async with (
        connected(here.under_test.broker()) as connection,
        open_dead_letters(connection, letters_max=1000) as opened,
    ):
        await opened.drop([*opened.letters])


@asynccontextmanager
async def exchange_of(cloud: Cloud, user: str, name: str) -> AsyncIterator[AbstractExchange]:
    connection = await aio_pika.connect(cloud.here.under_test.url(user))
    try:
        channel = await connection.channel(publisher_confirms=True)
        yield await channel.get_exchange(name, ensure=False)
    finally:
        with suppress(aio_pika.exceptions.AMQPError):
            await connection.close()


async def say(
    cloud: Cloud,
    user: str,
    exchange: str,
    key: str,
    message: Message | bytes,
    *,
    headers: Mapping[str, object] | None = None,
    reply_to: str | None = None,
    named: bool = True,
    id_: str = "x",
) -> None:
    body = message if isinstance(message, bytes) else encode(Envelope(message=message, id=id_))
    said = aio_pika.Message(
        body,
        content_type="application/json",
        headers=dict(headers or {}),  # type: ignore[arg-type]
        reply_to=reply_to,
        user_id=user if named else None,
    )
    async with exchange_of(cloud, user, exchange) as there:
        await there.publish(said, key, mandatory=False)


def release_of(cloud: Cloud) -> ReleaseClaim:
    return ReleaseClaim(cell="cell0", consumer=cloud.theirs, attempt=1, issued_at=now())


async def test_an_application_acts_under_none_of_its_keys_as_somebody_else(cloud: Cloud) -> None:
    disable = SetHost(host=cloud.host, mode="draining", reason="mine")
    theirs = BuildInstance(request_id=RequestId(uuid4()), flavor=SMALL, project="bank")
    delete = DeleteInstance(instance=cloud.theirs)
    own_key = "build.request.shop"
    for user, exchange, key, message in (
        (SHOP.user, PLACEMENT, "usages.query.shop", release_of(cloud)),
        (ADMIN.user, PLACEMENT, "candidates", release_of(cloud)),
        (SHOP.user, API, own_key, disable),
        (SHOP.user, API, own_key, theirs),
        (SHOP.user, API, own_key, delete),
        (SHOP.user, API, "instance.delete.shop", DeleteInstance(instance=cloud.theirs)),
        (SHOP.user, API, "instance.delete.shop", DeleteInstance(instance=cloud.theirs, project="bank")),
    ):
        await say(cloud, user, exchange, key, message)
    # The order is accepted, but finds nothing of its own project.
    await say(
        cloud,
        SHOP.user,
        API,
        "instance.delete.shop",
        DeleteInstance(instance=cloud.theirs, project="shop"),
    )
    assert all("counts only under the key" in letter.reason for letter in await cloud.letters(6))


async def test_copies_are_judged_by_the_key_that_the_broker_judged(cloud: Cloud) -> None:
    """RabbitMQ also routes by the keys in CC and BCC."""
    disable = SetHost(host=cloud.host, mode="draining", reason="mine")
    everywhere = ["host.set", "instance.delete.-", "build.request.bank", "release.cell0"]
    copies = {"CC": everywhere, "BCC": everywhere}
    await say(cloud, SHOP.user, API, "move.request.shop", disable, headers=copies)
    await say(cloud, CONDUCTOR, PLACEMENT, f"swap.{CELL}", release_of(cloud), headers=copies)
    await say(cloud, COMPUTE, PLACEMENT, f"inventory.report.{CELL}", release_of(cloud), headers=copies)
    letters = await cloud.letters(4)

    assert all("counts only under the key" in letter.reason for letter in letters), letters


async def test_a_parcel_that_was_dead_lettered_on_its_way_has_no_senders_authority(cloud: Cloud) -> None:
    """A user's own queue forwards messages under another key, with the verified name of the first sender."""
    connection = await aio_pika.connect(cloud.here.under_test.url(SHOP.user))
    channel = await connection.channel()
    forwarding = await channel.declare_queue(
        exclusive=True,
        arguments={
            "x-dead-letter-exchange": API,
            "x-dead-letter-routing-key": "build.request.bank",
            "x-message-ttl": 0,
        },
    )
    reply_to = f"answers.{SHOP.user}.p1"
    await forwarding.bind("moor.reply", reply_to)
    # The scheduler's answer arrives in it and is forwarded, as if the scheduler had requested a build.
    question = json.dumps({"id": "q", "message": {"type": "instance.query", "project": "shop"}}).encode()
    await say(cloud, SHOP.user, API, "instance.query.shop", question, reply_to=reply_to)
    (letter,) = await cloud.letters(1)
    await connection.close()

    assert letter.reason.startswith("it arrived as a dead letter of the queue 'amq.gen-")


async def test_nobody_has_anybody_else_answered(cloud: Cloud) -> None:
    for reply_to in ("answers.moor-scheduler.p1", "answers.moor-app-admin.p1", "x" * 200, "answers."):
        await say(
            cloud,
            SHOP.user,
            API,
            "instance.query.shop",
            b'{"id":"1","message":{"type":"instance.query","project":"shop"}}',
            reply_to=reply_to,
        )
    assert all("reply_to" in letter.reason for letter in await cloud.letters(4))


async def test_who_does_not_say_who_it_is_is_refused_and_not_answered(cloud: Cloud) -> None:
    await say(cloud, ADMIN.user, API, "instance.delete.-", DeleteInstance(instance=cloud.theirs), named=False)
    # A user created by hand, with all rights, and a name that no role has.
    await say(cloud, "", API, "instance.delete.-", DeleteInstance(instance=cloud.theirs), named=False)
    assert all("user_id" in letter.reason for letter in await cloud.letters(2))


async def test_headers_of_retries_are_believed_on_exchanges_for_retries_alone(cloud: Cloud) -> None:
    forged = {"moor-sender": "moor-operator", "moor-exchange": API, "moor-key": "host.set"}
    disable = SetHost(host=cloud.host, mode="draining", reason="mine")
    await say(cloud, SHOP.user, API, "build.request.shop", disable, headers=forged)
    # Its own retry exchange reaches only its own queue, which takes no orders about hosts.
    await say(cloud, COMPUTE, f"moor.retry.compute.{CELL}", f"compute.{CELL}.work", disable, headers=forged)
    assert len(await cloud.letters(2)) == 2


async def test_facts_by_who_may_not_state_them_change_no_picture(cloud: Cloud) -> None:
    lie = ProvidersChanged(at=LogPosition(term=999, position=1))
    page = SnapshotPage(providers=(), published=LogPosition(term=999, position=1))
    for user, key in ((CONDUCTOR, f"instance.active.{CELL}"), (COMPUTE, f"host.state.{CELL}")):
        await say(cloud, user, EVENTS, key, lie, headers={"CC": ["providers.changed"]})
        await say(cloud, user, EVENTS, key, page, headers={"CC": ["providers.changed"]})

    letters = await cloud.letters(4)

    assert sorted(letter.type for letter in letters) == ["providers.changed"] * 2 + ["snapshot.page"] * 2
    assert all("counts only under the key" in letter.reason for letter in letters)
