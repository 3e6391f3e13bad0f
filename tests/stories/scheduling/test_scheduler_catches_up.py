"""A scheduler whose feed is late, has gaps, or is wrong: it finds out at low cost, and never refuses a request because
of it.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from msgspec import structs

from bus.broker import Broker
from bus.message import Message
from bus.messages.build import InstanceState
from bus.messages.placement import (
    AskSnapshot,
    LogPosition,
    ProviderGone,
    ProvidersChanged,
    SnapshotPage,
)
from bus.settings import BusSettings
from bus.workers.connections import Station
from engine.inventories import ProviderState, ProviderUsage
from engine.picture.picture import Picture
from placement_worker.settings import FEED_ENTRIES
from placement_worker.store import Unpublished
from placement_worker.store_sql import PlacementStore
from placement_worker.store_sql.log import ChangeFeed
from scheduler_worker.replica import CatchingUp
from tests.contracts.stage import SETTINGS
from tests.stories.cloud import QUICK_PACE, SMALL, Cloud, a_host, cloud
from tests.stories.layouts import IN_MEMORY, ONE_BROKER
from tests.stories.scripted import host_id
from tests.varied import varied
from tests.waiting import until

LONG_AGO, FAR_AHEAD = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


class ReadCounter:
    """Counts a scheduler's reads of placement's books."""

    def __init__(self) -> None:
        self.full = 0
        self.partial = 0

    def station(self, broker: Broker, name: str, *, settings: BusSettings, asks: bool) -> Station:
        reads = self

        class WatchedStation(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                # Only answered questions count: on a slow machine a question may have to be repeated.
                answers = await super().ask_all(questions)
                asked = [question for question in questions if isinstance(question, AskSnapshot)]
                reads.full += sum(not question.since for question in asked)
                reads.partial += sum(bool(question.since) for question in asked)
                return answers

        return WatchedStation(broker, name, settings=settings, asks=asks)


class FrozenLog(PlacementStore):
    """These books, but their log keeps reporting an old state of a provider once that provider is frozen."""

    def __init__(self, books: PlacementStore) -> None:
        vars(self).update(vars(books))
        self._books = books
        self._frozen: dict[str, ProviderState] = {}

    async def freeze(self, name: str) -> None:
        page = await self._books.snapshot_page(0, 100)
        self._frozen[name] = next(provider for provider in page.providers if provider.name == name)

    def as_frozen(self, providers: Sequence[ProviderState]) -> tuple[ProviderState, ...]:
        return tuple(self._frozen.get(provider.name, provider) for provider in providers)

    async def changes_page(self, since: str, after: int, limit: int) -> SnapshotPage | None:
        page = await self._books.changes_page(since, after, limit)
        if page is None:
            return None
        return structs.replace(page, providers=self.as_frozen(page.providers))

    @asynccontextmanager
    async def lead_feed(self) -> AsyncIterator[ChangeFeed | None]:
        async with self._books.lead_feed() as feed:
            yield None if feed is None else _FrozenFeed(feed, self)


class _FrozenFeed(ChangeFeed):
    def __init__(self, feed: ChangeFeed, books: FrozenLog) -> None:
        vars(self).update(vars(feed))
        self._books = books

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        read = await super().read(entries_max)
        return structs.replace(read, providers=self._books.as_frozen(read.providers))


async def the_end_of(setup: Cloud, number: int, **fields: object) -> InstanceState:
    """The request is not asked: a question that is repeated is searched for twice."""
    return await setup.boot(number, "active", "error", **fields)


@ONE_BROKER
async def test_with_two_placement_workers_the_writes_of_both_are_known_before_a_refusal(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduling("h1", vcpu=1):
        for number in range(1, 21):
            # The host grows by exactly the amount that the next request asks for.
            await setup.report(a_host("h1", vcpu=number))
            state = await the_end_of(setup, number)
            assert (state.state, state.no_valid_host, state.refusals) == ("active", None, ())


@pytest.mark.hits("placement does not tell changes since so long ago: all is read again")
@ONE_BROKER
async def test_a_scheduler_away_longer_than_the_log_is_kept_or_is_read_at_once_reads_everything(
    bus: str, books: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        station = Station(setup.client.consuming.broker, "away", settings=SETTINGS, asks=True)
        async with setup.running((station,), station):
            picture = Picture()
            catching_up = CatchingUp(station, picture, page=2)
            for name in ("h1", "h2", "h3"):
                await setup.report(a_host(name))
            await catching_up.catch_up()

            await setup.report(a_host("h3", vcpu=9))
            await catching_up.catch_up()
            assert (catching_up.flight.status.runs, catching_up.readings_of_all) == (2, 1)
            since = (await setup.books.snapshot_page(0, 1)).cursor
            await setup.report(a_host("h2", vcpu=9))

            async def log_is_forgotten() -> bool:
                await setup.books.prune(LONG_AGO, FAR_AHEAD)
                return await setup.books.changes_page(since, 0, 1) is None

            await until(log_is_forgotten, "the log is forgotten")
            await catching_up.catch_up()

            assert (catching_up.flight.status.runs, catching_up.readings_of_all) == (3, 2)
            monkeypatch.setattr("placement_worker.store_sql.log.CHANGES_MAX", 2)
            for name in ("h1", "h2", "h3"):
                await setup.report(a_host(name, vcpu=10))
            await catching_up.catch_up()
            now = await setup.books.revisions_page(0, 10)
            assert picture.trees.behind(dict(zip(now.internals, now.revisions, strict=True)), ()) == []
            assert len(picture.trees.internals()) == 3


@pytest.mark.hits("%d providers differ from placement's, reading all pages again")
@ONE_BROKER
async def test_a_change_that_was_lost_silently_is_noticed_and_healed(bus: str, books: str) -> None:
    reads, patient = ReadCounter(), structs.replace(QUICK_PACE, verify_every_s=0.2)
    async with cloud(bus, books) as setup:
        setup.books = forgetful = FrozenLog(setup.books)
        async with setup.scheduling("h1", vcpu=1, station=reads.station, pace=patient):
            assert (await the_end_of(setup, 1)).state == "active"
            all_read = reads.full
            await forgetful.freeze("h1")

            await setup.report(a_host("h1", vcpu=8))

            await until(lambda: reads.full > all_read, "the loss is noticed")
            assert (await the_end_of(setup, 2, flavor=structs.replace(SMALL, vcpus=4))).state == "active"


def full_in_later_usage(host: ProviderState) -> ProvidersChanged:
    usage = ProviderUsage(
        internal=host.internal, id=host.id, base=2**40, revision=2**40, used={"VCPU": 8}, generation=9
    )
    return ProvidersChanged(at=LIE, usage=(usage,))


def full_in_a_later_state(host: ProviderState) -> ProvidersChanged:
    inventories = {name: structs.replace(each, used=each.total) for name, each in host.inventories.items()}
    return ProvidersChanged(
        at=LIE, providers=(structs.replace(host, revision=2**40, shape=2**40, inventories=inventories),)
    )


def full_under_a_later_number(host: ProviderState) -> ProvidersChanged:
    (lie,) = full_in_a_later_state(host).providers
    return ProvidersChanged(at=LIE, providers=(structs.replace(lie, internal=2**40),))


def its_number_is_of_another(host: ProviderState) -> ProvidersChanged:
    other = host_id("no such host")
    gone = ProviderGone(internal=host.internal, id=host.id, revision=2**40)
    state = structs.replace(host, id=other, root=other, name="no such host", internal=host.internal + 1)
    return ProvidersChanged(at=LIE, gone=(gone,), providers=(state,))


LIE = LogPosition(term=999, position=1)


@ONE_BROKER
@pytest.mark.parametrize(
    "lie",
    [
        full_in_later_usage,
        full_in_a_later_state,
        full_under_a_later_number,
        its_number_is_of_another,
    ],
)
async def test_a_false_change_counts_no_longer_than_until_all_is_read_again(
    bus: str, books: str, lie: Callable[[ProviderState], ProvidersChanged]
) -> None:
    """By its revision it would be later than every true state of its host for ever."""
    reads, patient = ReadCounter(), structs.replace(QUICK_PACE, verify_every_s=0.2)
    async with (
        cloud(bus, books) as setup,
        setup.scheduling("h1", station=reads.station, pace=patient),
    ):
        (page,) = [await setup.books.snapshot_page(0, 10)]
        liar = Station(setup.brokers.at_api("placement"), "liar", settings=SETTINGS)
        all_read = reads.full

        await liar.publisher.send(lie(page.providers[0]))

        await until(lambda: reads.full > all_read, "the lie is noticed")
        # It has begun, and has ended when another reading has: there is one at a time.
        await until(lambda: free_on_one_host(setup.pictures[0]) == 8, "the picture is true again")
        assert (await the_end_of(setup, 1, flavor=structs.replace(SMALL, vcpus=8))).state == "active"
        # A host that takes the lie's place later is believed, and so is the next usage of this one.
        await setup.add_hosts("h2", vcpu=8)
        assert (await the_end_of(setup, 2, flavor=structs.replace(SMALL, vcpus=8))).state == "active"
        refused = await the_end_of(setup, 3)
        assert (refused.state, refused.reason) == ("error", "no valid host")
        before = reads.full
        partial = reads.partial
        await until(lambda: reads.partial > partial + 3, "it is compared again")
        assert reads.full == before
        await liar.close()


@IN_MEMORY
async def test_what_changed_while_a_scheduler_had_no_feed_is_read_when_it_has_one_again(
    bus: str, books: str
) -> None:
    slow = varied(SETTINGS, CONNECT_DELAY_MS_FIRST=2_000, CONNECT_DELAY_MS_MAX=2_000)
    async with (
        cloud(bus, books) as setup,
        setup.scheduling("h1", vcpu=1, bus=slow),
        setup.listening("providers.changed") as said,
    ):
        feed = f"feed.{setup.brokers.at_api('scheduler').user or 'anyone'}.scheduler"
        await setup.brokers.api.delete_queue(feed)
        await setup.report(a_host("h1", vcpu=8))
        await until(lambda: said, "it is published")
        await until(lambda: free_on_one_host(setup.pictures[0]) == 8, "it is known")


def free_on_one_host(picture: Picture) -> int:
    rows = list(picture.rows_named("h1"))
    stock = picture.columns.stocks.get("VCPU")
    return int(stock.free[rows[0]]) if rows and stock is not None else -1
