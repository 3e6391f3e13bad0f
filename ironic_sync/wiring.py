"""The parts of a bare-metal daemon, put together; __main__.py runs them alone, `moor` beside others."""

import asyncio
import time
from collections.abc import Callable, Mapping

import os_traits

from bus.messages.cell import DeployProgressed, NodePower, UndeployOrdered
from bus.messages.cloud import RowFailed
from bus.workers.connections import Station, by_station
from bus.workers.consuming import Subscription
from bus.workers.sending import Link
from bus.workers.set_aside import FailedRows
from bus.workers.worker import Worker
from ironic_sync.applying import NodeWriter
from ironic_sync.core.offers import CellMap
from ironic_sync.core.rows import Answer
from ironic_sync.core.settling import NodePolicy
from ironic_sync.deploying import HANDLERS, Deployer
from ironic_sync.events import EventReader
from ironic_sync.membership import Membership, Review
from ironic_sync.reporting import NodeAnnouncer, Reporter
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules, Inbox
from ironic_sync.store_sql import IronicStore
from ironic_sync.sweeping import Adopter, Sweeper
from kit.process import Part

STANDARD_TRAITS = frozenset(os_traits.get_traits())


def now_us() -> int:
    return time.time_ns() // 1000


def ironic_parts(
    station: Station,
    ironic_link: Link,
    store: IronicStore,
    rules: DaemonRules,
    *,
    name: str,
    incarnation: str,
    cells: CellMap,
    inbox: Inbox | None = None,
    api: HttpIronicApi | None = None,
    in_cells: Mapping[str, Station] | None = None,
    clock_us: Callable[[], int] = now_us,
    clock_s: Callable[[], float] = time.monotonic,
) -> tuple[Part, ...]:
    """All parts of a daemon. The station must be one that asks questions, since the reports go to placement as
    questions. `ironic_link` leads to the broker of Ironic's notifications.

    Without `api`, only notifications count, and nothing can be deployed. `in_cells` are the stations on the cells'
    own brokers; the caller closes them.
    """
    chance = station.chance
    policy = NodePolicy(
        cells=cells,
        standard_traits=STANDARD_TRAITS,
        can_read=api is not None,
        place_property=rules.place_property,
    )
    apart = in_cells or {}
    at = _stations_of(cells, station, apart)
    # Any of the cells' queues will do: each daemon reads all. Without a cell there is nothing to deploy.
    cell, there = next(iter(at.items()), ("", station))
    failed = FailedRows(there, f"ironic.{cell}.work")
    writer = NodeWriter(store, policy, failed, clock_us=clock_us)
    membership = Membership(store, name, incarnation, rules, clock_s=clock_s, chance=chance)
    reporter = Reporter(
        writer, store, station, rules, daemon=name, overtake=membership.overtake, chance=chance
    )
    announcer = NodeAnnouncer(store, membership, station.publisher, rules, chance=chance)
    writer.listen(reporter.touch)
    writer.listen_to_events(reporter.await_offers)
    writer.listen_to_changes(announcer.touch)
    membership.listen(announcer)
    reading: Sweeper | Adopter
    if api is None:
        reading = Adopter(writer, store, membership, rules, chance=chance)
    else:
        reading = Sweeper(api, writer, store, membership, rules, clock_s=clock_s, chance=chance)
        writer.listen(reading.touch)
    membership.listen(reading)
    events = EventReader(
        ironic_link,
        inbox or rules.inbox,
        writer,
        station.publisher,
        name=station.name,
        settings=station.settings,
        on_gap=reading.gap,
        on_allocations=reading.look_into,
        on_came_back=announcer.tell_again,
        chance=chance,
    )
    deploying: tuple[Part, ...] = ()
    if api is not None:

        def say(message: Answer | DeployProgressed | UndeployOrdered | NodePower) -> asyncio.Future[None]:
            # Operators and keepers hear events at the API level.
            is_event = isinstance(message, UndeployOrdered | NodePower)
            there = station if is_event else apart.get(message.cell, station)
            return there.publisher.send(message)

        deployer = Deployer(api, writer, store, membership, say, rules, failed, chance=chance)
        api.order_only_if(membership.may_act_on)
        writer.listen(deployer.touch)
        membership.listen(deployer)
        deploying = (deployer,)
    orders = tuple(
        Worker(
            there,
            Subscription(
                f"ironic.{cell}.work",
                {**HANDLERS, **failed.handlers},
                writer,
                before_burial={RowFailed: (failed.end,)},
            ),
        )
        for cell, there in at.items()
    )
    review = Review(
        store,
        name,
        rules,
        clock_us,
        listeners=(reporter.try_foreign, announcer.tell_again),
        forgotten=membership.compare_soon,
        chance=chance,
    )
    return (events, reading, reporter, announcer, review, *orders, *deploying, membership, station)


def _stations_of(cells: CellMap, station: Station, apart: Mapping[str, Station]) -> dict[str, Station]:
    """From where the orders of every cell come that a node may be in: each from its own broker."""
    at = dict.fromkeys(cells.names, station)
    for there, names in by_station(apart).items():
        at |= dict.fromkeys((name for name in names if name in at), there)
    return at
