"""The registered applications, and their feeds. An application is a client program; its feed has the events of its
projects only.

Between workers, events of all projects travel in large parcels. If an event is of a project of any application, it is
published a second time, on the feed of that project. All other events are published once. The publisher adds the copy
to every event that it sends, so an event that is sent again after a crash is repeated on the feed, too.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from bus.message import Message, Scope
from bus.messages.build import BuildAccepted, BuildRejected, InstanceEvent
from bus.messages.projects import (
    ApplicationSet,
    ApplicationsFound,
    AskApplications,
    KnownApplication,
    SetApplication,
)
from bus.topology import LOCAL, application_queue, broker_user_of
from bus.workers.connections import Station
from bus.workers.consuming import Subscription
from bus.workers.handlers import Answer, Bury, Handler, Handlers, ReadOnly, Received, Said, Tell, Weighed
from bus.workers.publisher import Publisher
from bus.workers.worker import Worker
from kit.errors import NotFound
from kit.parts import Background, Periodic, set_beside
from kit.process import Part
from scheduler_worker.core.instances.lifecycle import CellEvent
from scheduler_worker.core.project_view import IsHost, seen_by_project
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.reading import SENT_AT, rejection
from scheduler_worker.store_sql import SchedulerStore

# How far an operator's clock may be ahead of ours: an order with a later time would make all orders after it outdated.
AHEAD_MAX = timedelta(minutes=5)


class Applications(Periodic):
    """The applications that this process knows. They are read again at an interval, since other workers write them."""

    def __init__(
        self,
        store: SchedulerStore,
        publisher: Publisher,
        poll_s: float,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
        *,
        is_host: IsHost,
    ) -> None:
        super().__init__("look for applications", self.refresh, poll_s, is_needed=True, chance=chance)
        self._is_host = is_host
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self.names: frozenset[str] = frozenset()
        self._projects: frozenset[str] = frozenset()
        self._admins = frozenset((LOCAL.name,))

    async def refresh(self) -> None:
        """Read all applications from the database. On return, every one that was written before the call is known."""
        applications = await self._store.applications()
        self.names = frozenset(each.name for each in applications)
        self._projects = frozenset(project for each in applications for project in each.projects)
        self._admins = frozenset(each.name for each in applications if each.admin)
        if LOCAL.name not in self.names:
            # The user of `moor up`, which registers none.
            self._admins |= {LOCAL.name}
        self._publisher.copy_of = self.copy_of if self._projects else None

    def copy_of(self, message: Message) -> tuple[str, Message] | None:
        """The project on whose feed this event is published, and the event as it sees it; None if it is on none."""
        match message:
            case InstanceEvent():
                project = message.instance.project
            case BuildAccepted() | BuildRejected():
                project = message.project
            case _:
                return None
        return (project, seen_by_project(message, self._is_host)) if project in self._projects else None

    def is_for_project(self, ask: Received[Message]) -> bool:
        """Is the answer to this message for a project: for its application, or for a member?"""
        speaker = broker_user_of(ask.sender)
        is_projects = (
            speaker is not None and bool(speaker.application) and speaker.application not in self._admins
        )
        return is_projects or getattr(ask.message, "for_member", False)

    def for_projects(self, handlers: Handlers) -> Handlers:
        """These handlers of messages of projects, with answers that tell projects what they may see."""
        made: dict[int, Handler | ReadOnly | Weighed] = {}
        return {
            kind: made.setdefault(id(taker), self._for_projects(taker))
            if kind.SCOPE is Scope.PROJECT
            else taker
            for kind, taker in handlers.items()
        }

    def _for_projects(self, taker: Handler | ReadOnly | Weighed) -> Handler | ReadOnly | Weighed:
        # Only messages with the same handler are handled together.
        if isinstance(taker, Weighed):
            return structs.replace(taker, handle=self._said_in_public(taker.handle))
        if isinstance(taker, ReadOnly):
            return ReadOnly(self._said_in_public(taker.handle))
        return self._said_in_public(taker)

    def _said_in_public(
        self, handle: Callable[..., Awaitable[Sequence[Said]]]
    ) -> Callable[..., Awaitable[Sequence[Said]]]:
        async def handled(asks: Sequence[Received[Any]], *transaction: OutboxTransaction) -> Sequence[Said]:
            return [
                structs.replace(each, message=seen_by_project(each.message, self._is_host))
                if isinstance(each, Answer) and self.is_for_project(each.question)
                else each
                for each in await handle(asks, *transaction)
            ]

        return handled

    @property
    def has_listeners(self) -> bool:
        return bool(self._projects)

    def repeated(self, event: CellEvent, cause: Received[CellEvent]) -> Sequence[Said]:
        """The copy for the feed of its project, of an event that a cell published. The publisher of this process adds
        copies only to the events that it sends itself.
        """
        copy = self.copy_of(event)
        return (Tell(copy[1], cause, feed=copy[0]),) if copy else ()

    async def on_set(
        self, asks: Sequence[Received[SetApplication]], transaction: OutboxTransaction
    ) -> list[Said]:
        """Register applications, or remove them; other workers see the change when they next read the table.

        Orders about one application count by the time at which they were sent, since the bus may deliver an older order
        after a newer one. Such an older order changes nothing, and its answer shows the application as it is.
        """
        store = await transaction.begun()
        said: list[Said] = []
        # All workers lock the rows of several orders in one order.
        for ask in sorted(asks, key=lambda ask: ask.message.name):
            order, sent_at = ask.message, _valid_date(ask.sent_at, self._clock())
            if isinstance(sent_at, BuildRejected):
                said += [Answer(ask, sent_at), Bury(ask, f"{sent_at.field}: {sent_at.reason}")]
                continue
            application = KnownApplication(name=order.name, projects=order.projects, admin=order.admin)
            known = await store.set_application(order.name, sent_at, None if order.removed else application)
            said.append(Answer(ask, ApplicationSet(application=known)))
        return said

    async def on_ask(self, asks: Sequence[Received[AskApplications]]) -> list[Said]:
        found = ApplicationsFound(applications=tuple(await self._store.applications()))
        return [Answer(ask, found) for ask in asks]


def _valid_date(sent_at: datetime | None, now: datetime) -> datetime | BuildRejected:
    if sent_at is None:
        return rejection(
            SENT_AT, "", "must be given: orders about one application count by when they were sent"
        )
    if sent_at - now > AHEAD_MAX:
        ahead_s = (sent_at - now).total_seconds()
        return rejection(
            SENT_AT,
            sent_at.isoformat(),
            f"is {ahead_s:.0f} s ahead of the clock here, may be {AHEAD_MAX.total_seconds():.0f}: set the sender's clock",
        )
    return sent_at


# The queues of applications: each may have its own ones for its orders and its questions (docs/bus-concepts.md).
#
# A worker loop reads each of them, beside those that read the queues for all. So a flood of one application leaves what others
# sent where it is: at the head of another queue.


# A queue that was not there is looked for again after so many looks: RabbitMQ logs each time. An application that was registered
# without the rights on the broker has none.
LOOKS_WITHOUT = 11


class ApplicationQueues(Periodic):
    """Runs a worker loop for each queue of each known application. It looks at an interval, since operators add and remove
    applications.
    """

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        station: Station,
        subscriptions: Sequence[Subscription[OutboxTransaction]],
        poll_s: float,
        chance: random.Random | None = None,
    ) -> None:
        """`names` are the known applications. Each has a queue beside that of each of the `subscriptions`."""
        super().__init__("look for queues of applications", self.look, poll_s, chance=chance)
        self._names = names
        self._station = station
        # In smaller batches, so that a flood of one application delays the others for less long. The worker of the queue for all
        # sweeps their outbox.
        self._subscriptions = [
            structs.replace(each, sweeps=False, batches_in_flight=1, singly=False) for each in subscriptions
        ]
        # By queue.
        self._running: dict[str, Part] = {}
        # The looks until a missing queue is looked for again.
        self._missing: dict[str, int] = {}
        self._background = Background(self._running.pop)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The worker loops, whose status health and metrics show."""
        return tuple(self._running.values())

    async def run(self) -> None:
        async with self._background:
            await super().run()
            for reader in self.parts:
                await reader.stop()

    async def look(self) -> None:
        """Start to read the queues of new applications, and stop for those that were removed."""
        known = {
            application_queue(beside.queue, name): (name, beside)
            for name in sorted(self._names())
            for beside in self._subscriptions
        }
        for queue in sorted(self._running.keys() - known.keys()):
            await self._running[queue].stop()
        for queue, (name, beside) in known.items():
            if queue not in self._running and await self._is_there(queue):
                running = self._running[queue] = Worker(self._station, structs.replace(beside, queue=queue))
                # It is one application's, perhaps removed: the scheduler serves all others.
                set_beside((running,), f"application {name}")
                self._background.start(running.run(), queue)

    async def _is_there(self, queue: str) -> bool:
        if looks := self._missing.pop(queue, 0):
            self._missing[queue] = looks - 1
            return False
        async with self._station.consuming.opened() as connection:
            try:
                await connection.depth(queue)
            except NotFound:
                self._missing[queue] = LOOKS_WITHOUT
                return False
        return True
