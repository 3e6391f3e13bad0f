"""What Nova knows is kept true by its notifications, and read again after each interruption: a lost notification is found."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from bus.message import Parcel
from bus.topology import Exchange, Objects
from bus.workers.sending import Link
from kit.errors import Unavailable
from kit.health import About, Health
from kit.health_server import Metrics
from nova_bridge.cloud import NovaCloud, ServicesRead
from nova_bridge.cloud_reading import CloudReader, NovaCloudKeeper
from nova_bridge.settings import NovaSettings
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.small_world import connected, publish
from tests.contracts.stage import SETTINGS
from tests.running import running
from tests.unit.nova.test_cloud_changes import SERVICE, SERVICE_DATA, a_cloud, body, service
from tests.waiting import until

# As oslo.messaging declares it.
THEIRS = Objects((Exchange("nova", durable=False),))
QUEUE = "moorage.nova.test"
RARELY = NovaSettings(read_s=3600)


class FakeNova(CloudReader):
    """What the API would say; an error in `fails` is raised instead."""

    def __init__(self) -> None:
        self.now = a_cloud()
        self.fails: Unavailable | None = None
        self.reads = self.answered = 0
        # While set, a reading that has begun does not end.
        self.held = asyncio.Event()
        self.held.set()

    async def cloud(self) -> NovaCloud:
        self.reads += 1
        read = self.now
        if self.fails is not None:
            raise self.fails
        await self.held.wait()
        self.answered += 1
        return read

    async def services(self) -> ServicesRead:
        return ServicesRead(tuple(self.now.services.values()))


@pytest.fixture
def nova() -> FakeNova:
    return FakeNova()


@asynccontextmanager
async def keeping(
    nova: FakeNova,
    under_test: BrokerUnderTest | None,
    settings: NovaSettings = RARELY,
    services_s: float = 3600,
) -> AsyncIterator[NovaCloudKeeper]:
    link = None if under_test is None else Link(under_test.broker(), SETTINGS)
    keeper = NovaCloudKeeper(nova, settings, services_s=services_s, link=link, queue=QUEUE, bus=SETTINGS)
    async with running((keeper,), *([] if link is None else [link])):
        if link is not None:
            # When the queue is bound, all is read once more, since earlier notifications may be lost.
            await until(lambda: nova.reads >= 2)
        yield keeper


def said(number: int, *, disabled: bool) -> Parcel:
    """The notification with this number: later ones are newer."""
    at = str((datetime(2026, 11, 25, 12, tzinfo=UTC) + timedelta(seconds=number)).replace(tzinfo=None))
    data = SERVICE_DATA | {"disabled": disabled, "disabled_reason": str(number)}
    update = body("service.update", "ServiceStatusPayload", data, at)
    return Parcel("nova", "versioned_notifications.info", update)


def reason(keeper: NovaCloudKeeper) -> str:
    cloud = keeper.cloud
    return "" if cloud is None or SERVICE not in cloud.services else cloud.services[SERVICE].disabled_reason


@pytest.mark.hits("a notification %r of Nova cannot be read, and all is read again: %s")
async def test_a_notification_changes_what_is_known_and_others_are_counted(
    under_test: BrokerUnderTest, nova: FakeNova
) -> None:
    async with connected(under_test.broker(), THEIRS) as theirs, keeping(nova, under_test) as keeper:
        assert reason(keeper) == ""
        other = Parcel("nova", "versioned_notifications.info", body("instance.update", "X", {}))
        await publish(theirs, other, Parcel("nova", "scheduler", b"no notification"), said(1, disabled=True))
        await until(lambda: reason(keeper) == "1")
        assert nova.reads == 2
        nova.now = a_cloud(services={SERVICE: service(is_disabled=True, disabled_reason="1")})

        # It said something that cannot be read, so it may have said anything.
        await publish(theirs, Parcel("nova", "versioned_notifications.error", b"{"))
        await until(lambda: nova.reads == 3)

        page = Metrics(Health(About("scheduler", "1"), (keeper,))).page().decode()
        for outcome in ("applied", "ignored", "unreadable"):
            assert f'moor_nova_notifications_total{{outcome="{outcome}"}} 1.0' in page


async def test_what_is_told_during_a_reading_is_not_undone_by_it(
    under_test: BrokerUnderTest, nova: FakeNova
) -> None:
    async with connected(under_test.broker(), THEIRS) as theirs, keeping(nova, under_test) as keeper:
        nova.held.clear()
        await publish(theirs, Parcel("nova", "versioned_notifications.info", b"{"))
        await until(lambda: nova.reads == 3)
        await publish(theirs, said(1, disabled=True))
        await until(lambda: reason(keeper) == "1")

        nova.held.set()
        await until(lambda: nova.answered == 3)

        assert reason(keeper) == "1"


async def test_a_broker_without_nova_is_listened_to_as_soon_as_there_is_one(
    under_test: BrokerUnderTest, nova: FakeNova, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nova_bridge.cloud_reading.BIND_S", 0.02)
    async with connected(under_test.broker()) as ours, keeping(nova, under_test) as keeper:
        await ours.declare(THEIRS)
        await until(lambda: nova.reads >= 3)
        await publish(ours, said(1, disabled=True))

        await until(lambda: reason(keeper) == "1")


async def test_after_an_interruption_all_is_read_again(under_test: BrokerUnderTest, nova: FakeNova) -> None:
    async with connected(under_test.broker(), THEIRS), keeping(nova, under_test) as keeper:
        before = nova.reads
        nova.now = a_cloud(services={SERVICE: service(is_disabled=True, disabled_reason="missed")})
        await under_test.cut_connections()

        await until(lambda: nova.reads > before and reason(keeper) == "missed")


async def test_a_nova_that_does_not_answer_leaves_what_is_known_and_is_asked_again(nova: FakeNova) -> None:
    async with keeping(nova, None, NovaSettings(read_s=0.05), services_s=0.05) as keeper:
        await until(lambda: keeper.cloud is not None)
        nova.fails = Unavailable("Nova answers 503")
        nova.now = a_cloud(services={}, nodes={})
        reads = nova.reads
        await until(lambda: nova.reads > reads + 1)
        assert keeper.cloud is not None
        assert keeper.cloud.nodes == a_cloud().nodes
        # Its services are read on, and are what they are.
        await until(lambda: keeper.cloud, holds=lambda cloud: not cloud.services)
        nova.fails = None
        await until(lambda: keeper.cloud, holds=lambda cloud: not cloud.nodes)
