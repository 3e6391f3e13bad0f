"""The deciders about requests: each reads the knowledge of this worker, and asks placement."""

import os_resource_classes
import os_traits

from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.aggregates.membership import AggregateMembership
from scheduler_worker.aggregates.orders import AggregateOrders
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.core.choosing.plugins import multiplier_key
from scheduler_worker.requests.adopting import InstanceAdopter
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.burying import Burial
from scheduler_worker.requests.last_filters import LastFilters
from scheduler_worker.requests.more_alternates import AlternatesFinder
from scheduler_worker.requests.move_hosts import MoveHostFinder
from scheduler_worker.requests.move_needs import MoveNeedsFinder
from scheduler_worker.requests.moving import Mover
from scheduler_worker.requests.request_reader import RequestReader
from scheduler_worker.wiring.given import Given
from scheduler_worker.wiring.knowledge import Knowledge

STANDARD = Vocabulary(
    classes=frozenset(os_resource_classes.STANDARDS), traits=frozenset(os_traits.get_traits())
)


class Deciders:
    def __init__(self, given: Given, known: Knowledge) -> None:
        store, settings, clock, chance = given.store, given.settings, given.clock, given.chance
        picture, plugins, ask_all = given.picture, given.plugins, given.station.ask_all
        self.reader = RequestReader(STANDARD, settings.horizon, plugins)
        self.claimer = Claimer(
            picture,
            known.replica,
            known.hosts,
            ask_all,
            make_sure=known.make_sure,
            plugins=plugins,
            settings=settings,
            chance=chance,
            clock=clock,
        )
        self.last_filters = LastFilters([each.name for each in plugins.filters])
        self.builder = Builder(
            store,
            self.claimer,
            self.reader,
            clock,
            settings,
            begin_waits=known.waiting.wrote,
            last_filters=self.last_filters,
        )
        self.burial = Burial(self.reader, store, clock, settings)
        self.membership = AggregateMembership(picture, ask_all, known.replica.catch_up)
        self.aggregates = AggregateOrders(
            store,
            picture,
            self.membership,
            clock,
            make_sure=known.make_sure,
            multipliers=frozenset(multiplier_key(each) for each in plugins.weighers),
            horizon=settings.horizon,
        )
        self.move_needs = MoveNeedsFinder(
            store, picture, self.reader, ask_all=ask_all, make_sure=known.make_sure
        )
        self.move_hosts = MoveHostFinder(
            picture,
            plugins,
            alternates_max=settings.alternates_max,
            make_sure=self.claimer.until_current,
            chance=chance,
        )
        self.mover = Mover(
            self.move_needs,
            self.move_hosts,
            picture,
            clock,
            settings,
            know_hosts=known.host_watch.look_again,
            waiting=known.waiting,
            unclaimed=known.unclaimed,
            last_filters=self.last_filters,
        )
        self.adopter = InstanceAdopter(
            store, self.reader, ask_all, clock, timeout_s=settings.request_timeout_s
        )
        self.more_alternates = AlternatesFinder(
            store,
            picture,
            plugins,
            clock,
            alternates_max=settings.alternates_max,
            make_sure=self.claimer.until_current,
            hold=known.unclaimed.hold,
            chance=chance,
        )
