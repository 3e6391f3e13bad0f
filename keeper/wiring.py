"""The parts of a keeper, put together. `__main__.py` runs them alone, `moor up` beside other workers."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID, uuid4

from bus.message import Message
from bus.workers.connections import Station
from bus.workers.consuming import Subscription
from bus.workers.handlers import Answer, Handler, Received, Said
from bus.workers.worker import Worker
from keeper.asking import Schedulers
from keeper.balancing import Balancing, ContinuousBalance
from keeper.core.campaigns import rejected
from keeper.handlers import Orders, Questions
from keeper.hooks import Hooks
from keeper.keeping import CampaignDriver
from keeper.policies import PolicyBook, PolicyCheck
from keeper.recovering import Recovery, Restarting
from keeper.settings import PACE, KeeperPace, KeeperSettings
from keeper.store_sql import KeeperStore
from kit.clock import now
from kit.process import Part

BURIED = "keepers failed at it, so it is among the dead letters; what it asks for may have been done in part"


def keeper_parts(
    station: Station,
    store: KeeperStore,
    settings: KeeperSettings,
    *,
    clock: Callable[[], datetime] = now,
    id_: UUID | None = None,
    pace: KeeperPace = PACE,
    hooks: Hooks | None = None,
) -> tuple[Part, ...]:
    """All parts of a keeper, its station included; the caller closes that. `id_` is the one under which it holds campaigns."""
    hooks = Hooks(settings.hooks_folder, settings.controllers_file) if hooks is None else hooks
    schedulers = Schedulers(station.ask_all)
    balancing = Balancing(schedulers, store, clock)
    keeper = CampaignDriver(
        station,
        schedulers,
        store,
        balancing,
        hooks=hooks,
        settings=settings,
        id_=id_ or uuid4(),
        clock=clock,
        pace=pace,
    )
    recovery = Recovery(station, schedulers, store, keeper.wake, clock=clock, pace=pace)
    restarting = Restarting(station, schedulers, store, clock=clock, pace=pace)
    policies = PolicyBook(schedulers, store, hooks, clock)
    balance = ContinuousBalance(station, balancing, store, keeper.wake, clock=clock, pace=pace)
    orders = Orders(schedulers, store, hooks, policies, balancing, clock=clock, wake=keeper.wake)
    questions = Questions(schedulers, store, policies, balancing, clock)
    buried: Mapping[type[Message], Sequence[Handler]] = {Message: (_on_buried,)}
    return (
        Worker(station, Subscription("keeper.requests", orders.handlers(), store, before_burial=buried)),
        Worker(station, Subscription("keeper.questions", questions.handlers(), store, before_burial=buried)),
        Worker(station, Subscription("keeper.events", orders.event_handlers(), store)),
        keeper,
        recovery.looking,
        restarting,
        balance.looking,
        PolicyCheck(station, store, policies, pace),
        station,
    )


async def _on_buried(asks: Sequence[Received[Message]], _: object) -> list[Said]:
    return [Answer(ask, rejected("message", "", BURIED)) for ask in asks]
