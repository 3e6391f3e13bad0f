"""The parts of a worker in the place of nova-scheduler, put together."""

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct, structs

from bus.clock import now
from bus.configuration.live import SettingsFollower
from bus.errors import WrongAnswer
from bus.message import ConsumerId
from bus.messages.administration import AskConsumer, ConsumerFound
from bus.messages.placement import ResourceAmount, ShapeMoved
from bus.origin import Origin
from bus.parts import Periodic
from bus.process import Part
from bus.topology import NOVA_DEAD
from bus.workers.dead_letters import dead_letter_parcel
from bus.workers.link import Link
from bus.workers.station import Station
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.core.choosing.filters.asked_aggregates import AskedAggregates
from scheduler_worker.core.choosing.filters.asked_hosts import AskedHosts
from scheduler_worker.core.choosing.filters.by_search import CUT, STRUCK
from scheduler_worker.core.choosing.filters.capacity import Capacity
from scheduler_worker.core.choosing.filters.flagged import FLAGGED
from scheduler_worker.core.choosing.filters.traits import TraitsFilter
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.choosing.standard import chosen_plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.nova.cloud.port import KnowsNovaCloud
from scheduler_worker.nova.request_spec import NovaRequestReader
from scheduler_worker.nova_worker.deciding import AskAll, NovaDecider
from scheduler_worker.nova_worker.hosts import NovaHosts
from scheduler_worker.nova_worker.news import NovaNews
from scheduler_worker.nova_worker.over_http.api import PlacementApi
from scheduler_worker.nova_worker.over_http.books import HttpBooks
from scheduler_worker.nova_worker.over_http.claims import HttpClaims
from scheduler_worker.nova_worker.over_http.settings import NovaPlacementSettings
from scheduler_worker.nova_worker.queues import rpc_queues
from scheduler_worker.nova_worker.serving import DeadRequest, NovaServer
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings
from scheduler_worker.replica.replica import NOVA_HEARD, Replica
from scheduler_worker.requests.request_reader import RequestReader
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.third_party import filters_of, weighers_of
from scheduler_worker.waiting import WaitingSpecs
from scheduler_worker.wiring.deciders import STANDARD
from scheduler_worker.wiring.staged import Staged

LOOK_S = 1.0
SHOWN_MAX = 2_000

log = logging.getLogger(__name__)


class FollowedPlacement(Protocol):
    """A part that keeps the picture up to date with placement. `whole` is set when the picture is whole for the first time."""

    whole: asyncio.Event

    async def catch_up(self) -> None: ...

    def moved(self, moved: ShapeMoved) -> bool: ...

    async def run(self) -> None: ...

    async def stop(self) -> None: ...


# What each of these consumers holds now. Raises `Operational` if placement does not answer.
HeldBy = Callable[[Sequence[ConsumerId]], Awaitable[Sequence[Sequence[ResourceAmount]]]]


class PlacementSide(Struct, frozen=True):
    """The placement for which is scheduled: how it is followed, how it is asked for claims, and what consumers hold. `parts` run with
    it.
    """

    followed: FollowedPlacement
    ask_all: AskAll
    held: HeldBy
    parts: tuple[Part, ...] = ()


def placement_on_bus(
    station: Station,
    picture: Picture,
    plugins: Plugins,
    choice: SchedulerSettings,
    chance: random.Random,
) -> PlacementSide:
    """Our own placement. The station asks questions."""
    replica = Replica(
        station,
        picture,
        lambda _: None,
        waiting=WaitingSpecs(picture, plugins),
        page=choice.snapshot_page,
        verify_every_s=choice.verify_every_s,
        chance=chance,
        heard=NOVA_HEARD,
    )
    return PlacementSide(replica, station.ask_all, _held_on_bus(station.ask_all), (station,))


def placement_over_http(
    api: PlacementApi, picture: Picture, settings: NovaPlacementSettings, chance: random.Random
) -> PlacementSide:
    """A placement that is reached over HTTP alone. The caller closes `api`."""
    books = HttpBooks(api, picture, settings, chance=chance)

    async def held(consumers: Sequence[ConsumerId]) -> Sequence[Sequence[ResourceAmount]]:
        found: list[Sequence[ResourceAmount]] = []
        for start in range(0, len(consumers), settings.reads_at_once):
            some = consumers[start : start + settings.reads_at_once]
            found += [each.amounts for each in await asyncio.gather(*map(api.held_by, some))]
        return found

    return PlacementSide(books, HttpClaims(api, books, settings, chance=chance).ask_all, held)


def _held_on_bus(ask_all: AskAll) -> HeldBy:
    async def held(consumers: Sequence[ConsumerId]) -> Sequence[Sequence[ResourceAmount]]:
        found: list[Sequence[ResourceAmount]] = []
        for answer in await ask_all([AskConsumer(consumer=each) for each in consumers]):
            if not isinstance(answer, ConsumerFound):
                raise WrongAnswer(f"placement answered what a consumer holds by {answer!r}")
            found.append(() if answer.consumer is None else answer.consumer.held)
        return found

    return held


MakesPlacement = Callable[[Picture, Plugins, random.Random], PlacementSide]
Bury = Callable[[DeadRequest], Awaitable[None]]


def bury_on_bus(station: Station, settings: NovaSchedulerSettings, clock: Callable[[], datetime]) -> Bury:
    """Keep messages that nobody can answer among our dead letters."""

    async def bury(dead: DeadRequest) -> None:
        parcel = dead_letter_parcel(
            dead.body,
            NOVA_DEAD,
            Origin(exchange=settings.exchange, key=dead.queue),
            reason=dead.reason,
            attempts=1,
            where=station.name,
            letter=secrets.token_hex(8),
            at=clock(),
        )
        await station.publisher.offer(parcel)

    return bury


async def bury_in_log(dead: DeadRequest) -> None:
    """Without a bus of ours there are no dead letters: the log has the message, without its secrets."""
    log.error("a message on %s was dropped: %s; it was %s", dead.queue, dead.reason, dead.body[:SHOWN_MAX])


def nova_parts(
    nova: Link,
    knows: KnowsNovaCloud,
    settings: NovaSchedulerSettings,
    choice: SchedulerSettings,
    *,
    placement: MakesPlacement,
    bury: Bury = bury_in_log,
    beside: tuple[Part, ...] = (),
    clock: Callable[[], datetime] = now,
    chance: random.Random | None = None,
    look_again: Callable[[], None] = lambda: None,
) -> tuple[Part, ...]:
    """Everything that such a worker runs. `nova` leads to Nova's broker. `beside` are the parts that keep `knows` up to
    date, and `look_again` has all of Nova read soon.
    """
    chance = chance or random.Random(secrets.randbits(64))
    picture, plugins = Picture(), plugins_of(choice)
    forced = forced_plugins(plugins)
    side = placement(picture, plugins, chance)
    hosts = NovaHosts(picture)

    def refresh() -> None:
        if (cloud := knows.cloud) is not None:
            hosts.take(cloud)

    news = NovaNews(picture, knows, look_again, clock)

    async def make_sure() -> None:
        await news.before_refusal()
        refresh()
        await side.followed.catch_up()

    async def find_names() -> None:
        await news.before_refusal(is_unknown=True)
        refresh()

    # A share of a host that Nova does not know is no reason to wait.
    claims = structs.replace(choice, host_row_wait_s=0.001)
    of_filters, of_forced = (
        Claimer(
            picture,
            side.followed,
            hosts,
            side.ask_all,
            make_sure=make_sure,
            plugins=each,
            settings=claims,
            chance=chance,
            clock=clock,
        )
        for each in (plugins, forced)
    )
    requests = RequestReader(STANDARD, timedelta(days=1), plugins)
    known = asyncio.Event()

    async def look() -> None:
        refresh()
        if knows.cloud is not None:
            known.set()
            if side.followed.whole.is_set():
                news.look()

    server = NovaServer(
        nova,
        rpc_queues(settings, secrets.token_hex(16)),
        NovaDecider(picture, hosts, of_filters, of_forced, plugins, ask_all=side.ask_all, clock=clock),
        NovaRequestReader(requests.spec_of, plugins.image_keys),
        hosts,
        refresh=refresh,
        look_again=look_again,
        find_names=find_names,
        bury=bury,
        settings=settings,
        clock=clock,
    )
    looking = Periodic("take over what Nova knows", look, LOOK_S, is_needed=True, chance=chance)

    def take(fresh: SchedulerSettings) -> None:
        renewed = plugins_of(fresh)
        plugins.become(renewed)
        forced.become(forced_plugins(renewed))

    renewing = SettingsFollower(choice, take)
    first: tuple[Part, ...] = (*side.parts, side.followed, looking, *beside)
    ready = (side.followed.whole, known)
    return (Staged(first, ready, (server,), seen=(of_filters, of_forced, renewing)),)


def plugins_of(settings: SchedulerSettings) -> Plugins:
    return chosen_plugins(settings, filters_of(settings), weighers_of(settings))


def forced_plugins(plugins: Plugins) -> Plugins:
    """For a request that names its host: Nova's scheduler asks no filter then, and placement still judges amounts, traits and
    aggregates. A disabled service has a trait that forbids its host.
    """
    flagged = tuple(each for each in FLAGGED if each.name in ("registered", "enabled", "inventory"))
    filters = (*flagged, AskedHosts(), AskedAggregates(), CUT, TraitsFilter(), Capacity(), STRUCK)
    return Plugins(filters=filters, weighers=plugins.weighers, way_judges=plugins.way_judges)
