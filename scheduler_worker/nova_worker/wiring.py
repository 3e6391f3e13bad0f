"""The parts of a worker in the place of nova-scheduler, put together."""

import asyncio
import random
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import structs

from bus.clock import now
from bus.configuration.live import SettingsFollower
from bus.parts import Periodic
from bus.process import Part
from bus.workers.link import Link
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
from scheduler_worker.nova_worker.deciding import NovaDecider
from scheduler_worker.nova_worker.hosts import NovaHosts
from scheduler_worker.nova_worker.news import NovaNews
from scheduler_worker.nova_worker.over_http.api import PlacementApi
from scheduler_worker.nova_worker.over_http.books import HttpBooks
from scheduler_worker.nova_worker.over_http.claims import HttpClaims
from scheduler_worker.nova_worker.queues import rpc_queues
from scheduler_worker.nova_worker.serving import NovaServer, ServingLimits
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings
from scheduler_worker.requests.request_reader import RequestReader
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.third_party import filters_of, weighers_of
from scheduler_worker.wiring.deciders import STANDARD
from scheduler_worker.wiring.staged import Staged

LOOK_S = 1.0


def nova_parts(
    nova: Link,
    knows: KnowsNovaCloud,
    settings: NovaSchedulerSettings,
    choice: SchedulerSettings,
    *,
    api: PlacementApi,
    refresh_s: float,
    beside: tuple[Part, ...] = (),
    clock: Callable[[], datetime] = now,
    chance: random.Random | None = None,
    look_again: Callable[[], None] = lambda: None,
    limits: ServingLimits | None = None,
) -> tuple[Part, ...]:
    """Everything that such a worker runs. `nova` leads to Nova's broker, and `api` to placement, which is asked for changes each `refresh_s`. `beside`
    are the parts that keep `knows` up to date, and `look_again` has all of Nova read soon.
    """
    chance = chance or random.Random(secrets.randbits(64))
    picture, plugins = Picture(), plugins_of(choice)
    forced = forced_plugins(plugins)
    books = HttpBooks(api, picture, refresh_s=refresh_s, chance=chance)
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
    claims = structs.replace(choice, host_row_wait_s=0.001)
    of_filters, of_forced = (
        Claimer(
            picture,
            books,
            hosts,
            placement.ask_all,
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

    def take(fresh: SchedulerSettings) -> None:
        renewed = plugins_of(fresh)
        plugins.become(renewed)
        forced.become(forced_plugins(renewed))

    renewing = SettingsFollower(choice, take)
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
