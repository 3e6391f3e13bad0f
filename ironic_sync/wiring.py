"""The parts of a bare-metal daemon, put together; __main__.py runs them alone, `moor` beside others."""

import time
from collections.abc import Callable

import os_traits

from bus.foreign import Inbox
from bus.link import Link
from bus.process import Part
from bus.station import Station
from ironic_sync.announcing import Announcer
from ironic_sync.applying import NodeKeeper
from ironic_sync.core.cells import CellMap
from ironic_sync.core.settling import Terms
from ironic_sync.events import EventReader
from ironic_sync.membership import Membership
from ironic_sync.reporting import Reporter
from ironic_sync.rest import ReadsNodes
from ironic_sync.settings import IronicSettings
from ironic_sync.store import IronicStore
from ironic_sync.sweeping import Adopter, Sweeper

STANDARD_TRAITS = frozenset(os_traits.get_traits())


def now_us() -> int:
    return time.time_ns() // 1000


def ironic_parts(
    station: Station,
    ironic_link: Link,
    store: IronicStore,
    settings: IronicSettings,
    *,
    name: str,
    incarnation: str,
    cells: CellMap,
    inbox: Inbox | None = None,
    api: ReadsNodes | None = None,
    clock_us: Callable[[], int] = now_us,
    clock_s: Callable[[], float] = time.monotonic,
) -> tuple[Part, ...]:
    """All of a daemon. The station must be one that asks; `ironic_link` leads to the broker on which Ironic speaks. Without
    `api` notifications alone decide.
    """
    chance = station.chance
    terms = Terms(cells=cells, standard_traits=STANDARD_TRAITS, can_read=api is not None)
    keeper = NodeKeeper(store, terms, skew_us=settings.skew_ms * 1000, clock_us=clock_us)
    membership = Membership(store, name, incarnation, settings, clock_s=clock_s, chance=chance)
    reporter = Reporter(keeper, store, station, settings, daemon=name, chance=chance)
    announcer = Announcer(store, membership, station.publisher, settings, chance=chance)
    keeper.listen(reporter.touch)
    keeper.listen(announcer.touch)
    membership.listen(announcer)
    reading: Sweeper | Adopter
    if api is None:
        reading = Adopter(keeper, store, name, settings, chance=chance)
    else:
        reading = Sweeper(api, keeper, store, membership, settings, chance=chance)
        keeper.listen(reading.touch)
    membership.listen(reading)
    events = EventReader(
        ironic_link,
        inbox or Inbox(),
        keeper,
        station.publisher,
        name=station.name,
        settings=station.settings,
        on_gap=reading.gap,
        on_allocations=reading.look_into,
        chance=chance,
    )
    return (events, reading, reporter, announcer, membership, station)
