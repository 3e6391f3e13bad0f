"""The parts of a worker in the place of nova-scheduler, put together."""

import asyncio
import random
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import NamedTuple

from bus.addresses import Addresses, broker_at
from bus.rabbit import RabbitBroker
from bus.settings import BusSettings
from bus.workers.running import about, run_worker
from bus.workers.sending import Link
from engine.choosing.aggregate_filters import AskedAggregates
from engine.choosing.filters import CUT, FLAGGED, STRUCK, AskedHosts, Capacity, TraitsFilter
from engine.choosing.plugin_settings import chosen_plugins
from engine.choosing.plugins import Plugins
from engine.picture.picture import Picture
from kit.clock import now
from kit.keystone import OpenStackSettings
from kit.parts import Periodic
from kit.process import Part
from kit.settings import BadSetting, SettingsFollower
from nova_bridge.cloud_reading import CloudReader, NovaApi, NovaCells, NovaCloudKeeper
from nova_bridge.databases import NovaDatabase, NovaDatabaseError, open_nova_database
from nova_bridge.deciding import NovaDecider
from nova_bridge.hosts import NovaHosts, NovaNews
from nova_bridge.placement_api import PlacementApi
from nova_bridge.placement_books import HttpBooks, HttpClaims
from nova_bridge.request_spec import NovaRequestReader
from nova_bridge.serving import NovaServer, ServingLimits, rpc_queues
from nova_bridge.settings import NOVA, NovaSettings
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.settings import SchedulerPace, SchedulerSettings, filters_of, weighers_of
from scheduler_worker.wiring import STANDARD, Staged

LOOK_S = 1.0


def nova_parts(
    nova: Link,
    knows: NovaCloudKeeper,
    settings: NovaSettings,
    choice: SchedulerSettings,
    *,
    api: PlacementApi,
    beside: tuple[Part, ...] = (),
    clock: Callable[[], datetime] = now,
    chance: random.Random | None = None,
    look_again: Callable[[], None] = lambda: None,
    limits: ServingLimits | None = None,
) -> tuple[Part, ...]:
    """Everything that such a worker runs. `nova` leads to Nova's broker, and `api` to placement. `beside`
    are the parts that keep `knows` up to date, and `look_again` has all of Nova read soon.
    """
    chance = chance or random.Random(secrets.randbits(64))
    picture, plugins = Picture(), plugins_of(choice)
    forced = forced_plugins(plugins)
    books = HttpBooks(api, picture, chance=chance)
    placement = HttpClaims(api, books, chance=chance)
    hosts = NovaHosts(picture)

    def refresh() -> None:
        if (cloud := knows.cloud) is not None:
            hosts.take(cloud)

    news = NovaNews(picture, knows, look_again, clock)

    async def make_sure() -> None:
        await news.before_refusal()
        refresh()
        await books.catch_up()

    async def find_names() -> None:
        await news.before_refusal(is_unknown=True)
        refresh()

    # A share of a host that Nova does not know is no reason to wait.
    pace = SchedulerPace(host_row_wait_s=0.001)
    of_filters, of_forced = (
        Claimer(
            picture,
            books,
            hosts,
            placement.ask_all,
            make_sure=make_sure,
            plugins=each,
            alternates_max=choice.alternates_max,
            chance=chance,
            clock=clock,
            pace=pace,
        )
        for each in (plugins, forced)
    )
    requests = RequestReader(STANDARD, timedelta(days=1), plugins)
    known = asyncio.Event()

    async def look() -> None:
        refresh()
        if knows.cloud is not None:
            known.set()
            if books.whole.is_set():
                news.look()

    server = NovaServer(
        nova,
        rpc_queues(settings, secrets.token_hex(16)),
        NovaDecider(
            picture,
            hosts,
            of_filters,
            of_forced,
            plugins,
            ask_all=placement.ask_all,
            held=api.held_by_each,
            clock=clock,
        ),
        NovaRequestReader(requests.spec_of, plugins.image_keys),
        hosts,
        refresh=refresh,
        look_again=look_again,
        find_names=find_names,
        limits=limits or ServingLimits(),
        rpc_timeout_s=settings.rpc_timeout_s,
        clock=clock,
    )
    looking = Periodic("take over what Nova knows", look, LOOK_S, is_needed=True, chance=chance)

    renewing = follow_settings(choice, plugins, forced)
    first: tuple[Part, ...] = (books, looking, *beside)
    ready = (books.whole, known)
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


def follow_settings(
    choice: SchedulerSettings, plugins: Plugins, forced: Plugins
) -> SettingsFollower[SchedulerSettings]:
    """Renew the plugins when their settings are read again, for as long as somebody holds what this returns."""

    def take(fresh: SchedulerSettings) -> None:
        renewed = plugins_of(fresh)
        plugins.become(renewed)
        forced.become(forced_plugins(renewed))

    return SettingsFollower(choice, take)


# Runs a worker in the place of nova-scheduler as a process.


class OpenedNova(NamedTuple):
    """The ways to a Nova and its placement, and the part that keeps what is known of it."""

    link: Link
    keeper: NovaCloudKeeper
    api: NovaApi
    placement: PlacementApi


# Makes the parts of a worker that stands in for nova-scheduler, or beside it.
PartsOfNova = Callable[[OpenedNova, NovaSettings, SchedulerSettings], tuple[Part, ...]]


def parts_in_place(nova: OpenedNova, settings: NovaSettings, choice: SchedulerSettings) -> tuple[Part, ...]:
    return nova_parts(
        nova.link,
        nova.keeper,
        settings,
        choice,
        api=nova.placement,
        beside=(nova.keeper,),
        look_again=nova.keeper.read_soon,
    )


async def run(
    role: str,
    parts_of: PartsOfNova,
    addresses: Addresses,
    settings: NovaSettings,
    choice: SchedulerSettings,
    *,
    account: OpenStackSettings,
    api_db: str,
    bus: BusSettings,
    health_at: str = "",
) -> None:
    """Raises BadSetting if it is not said where Nova and placement are."""
    async with AsyncExitStack() as stack:
        api = _nova_of(settings, account)
        stack.push_async_callback(api.close)
        cells = NovaCells(_database_of(api_db))
        stack.push_async_callback(cells.close)
        placement = _placement_of(settings, account)
        stack.push_async_callback(placement.close)
        link = Link(broker_of_nova(addresses), bus, name="connection to Nova")
        stack.push_async_callback(link.close)
        keeper = NovaCloudKeeper(
            CloudReader(api, cells, default_zone=settings.default_zone),
            settings,
            link=link,
            queue=f"moorage.{role}.{secrets.token_hex(8)}",
            bus=bus,
        )
        await run_worker(
            about(role, brokers=(addresses.nova_bus_url,)),
            parts_of(OpenedNova(link, keeper, api, placement), settings, choice),
            bus.drain_ms_max / 1000,
            stations=(link,),
            health_at=health_at,
        )


def _placement_of(settings: NovaSettings, account: OpenStackSettings) -> PlacementApi:
    if not settings.placement_url:
        why = "claims are written there over HTTP: name the placement of this Nova, or `keystone` for that in Keystone's catalogue"
        raise BadSetting(f"{NOVA.name}.placement_url", "", "not set", why)
    return PlacementApi(settings.placement_url, account)


def _nova_of(settings: NovaSettings, account: OpenStackSettings) -> NovaApi:
    if not settings.url:
        why = "hosts, services and aggregates are read from Nova's compute API: name it, or `keystone` for that in Keystone's catalogue"
        raise BadSetting(f"{NOVA.name}.url", "", "not set", why)
    return NovaApi(settings.url, account)


def _database_of(url: str) -> NovaDatabase:
    if not url:
        why = "Nova's API does not say which cell a host is in: name its API database, mysql://USER:PASSWORD@HOST/nova_api"
        raise BadSetting("nova_api_db", "", "not set", why)
    try:
        return open_nova_database("nova_api_db", url)
    except NovaDatabaseError as wrong:
        raise BadSetting("nova_api_db", url, "as set", str(wrong)) from None


def broker_of_nova(addresses: Addresses) -> RabbitBroker:
    url = addresses.nova_bus_url
    if not url:
        why = "name Nova's own RabbitMQ: `transport_url` of nova.conf as amqp://USER:PASSWORD@HOST/VHOST"
        raise BadSetting("nova_bus_url", "", "not set", why)
    broker = broker_at(url)
    if not isinstance(broker, RabbitBroker):
        raise BadSetting("nova_bus_url", url, "as set", "Nova's RPC is on a RabbitMQ: amqp:// or amqps://")
    return broker
