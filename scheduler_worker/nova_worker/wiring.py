"""The parts of a worker in the place of nova-scheduler, put together."""

import asyncio
import random
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import structs

from bus.clock import now
from bus.configuration.live import Remade
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
from scheduler_worker.nova_worker.deciding import NovaDecider
from scheduler_worker.nova_worker.hosts import NovaHosts
from scheduler_worker.nova_worker.queues import rpc_queues
from scheduler_worker.nova_worker.serving import DeadRequest, NovaServer
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings
from scheduler_worker.replica.replica import NOVA_HEARD, Replica
from scheduler_worker.requests.request_reader import RequestReader
from scheduler_worker.settings import SCHEDULER, SchedulerSettings
from scheduler_worker.third_party import filters_of, weighers_of
from scheduler_worker.waiting import WaitingSpecs
from scheduler_worker.wiring.deciders import STANDARD
from scheduler_worker.wiring.staged import Staged

LOOK_S = 1.0


def nova_parts(
    station: Station,
    nova: Link,
    knows: KnowsNovaCloud,
    settings: NovaSchedulerSettings,
    choice: SchedulerSettings,
    *,
    beside: tuple[Part, ...] = (),
    clock: Callable[[], datetime] = now,
    chance: random.Random | None = None,
    look_again: Callable[[], None] = lambda: None,
) -> tuple[Part, ...]:
    """Everything that such a worker runs. `station` is on our broker and asks placement there; `nova` leads to Nova's broker. `beside`
    are the parts that keep `knows` up to date.
    """
    chance = chance or random.Random(secrets.randbits(64))
    picture, plugins = Picture(), _plugins_of(choice)
    forced = _forced(plugins)
    hosts = NovaHosts(picture)
    waiting = WaitingSpecs(picture, plugins)
    replica = Replica(
        station,
        picture,
        lambda _: None,
        waiting=waiting,
        page=choice.snapshot_page,
        verify_every_s=choice.verify_every_s,
        chance=chance,
        heard=NOVA_HEARD,
    )

    def refresh() -> None:
        if (cloud := knows.cloud) is not None:
            hosts.take(cloud)

    async def make_sure() -> None:
        refresh()
        await replica.catch_up()

    # A share of a host that Nova does not know is no reason to wait.
    claims = structs.replace(choice, host_row_wait_s=0.001)
    of_filters, of_forced = (
        Claimer(
            picture,
            replica,
            hosts,
            station.ask_all,
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

    server = NovaServer(
        nova,
        rpc_queues(settings, secrets.token_hex(16)),
        NovaDecider(picture, hosts, of_filters, of_forced, plugins, ask_all=station.ask_all, clock=clock),
        NovaRequestReader(requests.spec_of, plugins.image_keys),
        hosts,
        refresh=refresh,
        look_again=look_again,
        bury=bury,
        settings=settings,
        clock=clock,
    )
    looking = Periodic("take over what Nova knows", look, LOOK_S, is_needed=True, chance=chance)

    def remake() -> None:
        plugins.become(_plugins_of(choice))
        for field in SCHEDULER.reloaded:
            structs.force_setattr(claims, field, getattr(choice, field))

    remade = Remade(choice, remake)
    first: tuple[Part, ...] = (station, replica, looking, *beside)
    return (Staged(first, (replica.whole, known), (server,), seen=(of_filters, of_forced, remade)),)


def _plugins_of(settings: SchedulerSettings) -> Plugins:
    return chosen_plugins(settings, filters_of(settings), weighers_of(settings))


def _forced(plugins: Plugins) -> Plugins:
    """For a request that names its host: Nova's scheduler asks no filter then, and placement still judges amounts, traits and
    aggregates. A disabled service has a trait that forbids its host.
    """
    flagged = tuple(each for each in FLAGGED if each.name in ("registered", "enabled", "inventory"))
    filters = (*flagged, AskedHosts(), AskedAggregates(), CUT, TraitsFilter(), Capacity(), STRUCK)
    return Plugins(filters=filters, weighers=plugins.weighers, way_judges=plugins.way_judges)
