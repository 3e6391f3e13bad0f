"""Which applications there are, and what they hear: events of their projects, said again on the feed.

Between workers, events keep their large parcels, of all projects. Only what concerns the project of an application is
said a second time, and where there is no application, nothing is. The publisher adds the second copy to whatever leaves
by it, so what is said again after a crash is said again on the feed, too.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from bus.handling import Answer, Bury, Handlers, Reading, Received, Said, Tell
from bus.message import Message
from bus.messages.applications import (
    ApplicationSet,
    ApplicationsFound,
    AskApplications,
    KnownApplication,
    SetApplication,
)
from bus.messages.build import (
    BuildAccepted,
    BuildRejected,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstancePlaced,
)
from bus.parts import Periodic
from bus.publisher import Publisher
from bus.topology import CELL0
from scheduler_worker.core.instances.lifecycle import CellsWord
from scheduler_worker.outbox.lazy_transaction import LateTransaction
from scheduler_worker.requests.answering import SENT_AT
from scheduler_worker.store import SchedulerStore, SchedulerTransaction

# How far an operator's clock may be ahead of ours: an order from later than that would outdate all that come after it.
AHEAD_MAX = timedelta(minutes=5)


class Applications(Periodic):
    """The registered applications, as this process knows them. A part: it looks for what other workers wrote."""

    def __init__(
        self,
        store: SchedulerStore,
        publisher: Publisher,
        poll_s: float,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("look for applications", self.refresh, poll_s, is_needed=True, chance=chance)
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._projects: frozenset[str] = frozenset()
        self.read = asyncio.Event()

    async def refresh(self) -> None:
        """On return, the projects are those of all applications that were written before the call."""
        applications = await self._store.applications()
        self._projects = frozenset(project for each in applications for project in each.projects)
        self._publisher.feed_by(self.project_of if self._projects else None)
        self.read.set()

    def project_of(self, message: Message) -> str:
        """The project on whose feed this event is said; empty if it is said on none."""
        match message:
            case InstancePlaced() | InstanceActive() | InstanceFailed() | InstanceDeleted():
                project = message.instance.project
            case BuildAccepted() | BuildRejected():
                project = message.project
            case _:
                return ""
        return project if project in self._projects else ""

    def asked(self) -> Handlers:
        """The question of people."""
        return {AskApplications: Reading(self._on_ask)}

    def ordered(self) -> Handlers:
        """The order of operators."""
        return {SetApplication: self._on_set}

    def fed(self, handlers: Handlers) -> Handlers:
        """The same, and what cells said of instances is said on the feed. News or not: listeners go by the sequence."""
        on_words = handlers[InstanceActive]
        assert not isinstance(on_words, Reading), "what cells say is saved"

        async def on_words_for_feeds(
            asks: Sequence[Received[CellsWord]], late: LateTransaction
        ) -> Sequence[Said]:
            said = await on_words(asks, late)
            return [*said, *self._heard(asks)] if self._projects else said

        return {
            **handlers,
            **dict.fromkeys((InstanceActive, InstanceFailed, InstanceDeleted), on_words_for_feeds),
        }

    def _heard(self, words: Iterable[Received[CellsWord]]) -> list[Said]:
        """A scheduler's own words, of cell0, are on the feed already."""
        return [
            Tell(word.message, word, feed=project)
            for word in words
            if word.message.cell != CELL0 and (project := self.project_of(word.message))
        ]

    async def _on_set(self, asks: Sequence[Received[SetApplication]], late: LateTransaction) -> list[Said]:
        """Other workers find it at their next look. Orders count by when they were sent, since an older one may be delivered
        after a newer: it changes nothing, and its sender is told what holds.
        """
        transaction = await late.begun()
        said: list[Said] = []
        # Workers that are given several at once lock their rows in one order.
        for ask in sorted(asks, key=lambda ask: ask.message.name):
            order, why = ask.message, _why_not_ordered(ask.sent_at, self._clock())
            if ask.sent_at is None or why is not None:
                assert why is not None, "an order without a date is refused"
                said += [Answer(ask, why), Bury(ask, f"{why.field}: {why.reason}")]
                continue
            if await transaction.hear_of_application(order.name, ask.sent_at):
                await _write(transaction, order)
            known = await transaction.application(order.name)
            said.append(Answer(ask, ApplicationSet(application=known)))
        return said

    async def _on_ask(self, asks: Sequence[Received[AskApplications]]) -> list[Said]:
        found = ApplicationsFound(applications=tuple(await self._store.applications()))
        return [Answer(ask, found) for ask in asks]


async def _write(transaction: SchedulerTransaction, order: SetApplication) -> None:
    if order.removed:
        await transaction.remove_application(order.name)
    else:
        await transaction.save_application(
            KnownApplication(name=order.name, projects=order.projects, admin=order.admin)
        )


def _why_not_ordered(sent_at: datetime | None, now: datetime) -> BuildRejected | None:
    if sent_at is None:
        return _rejected("", "must be given: orders about one application count by when they were sent")
    if sent_at - now > AHEAD_MAX:
        ahead_s = (sent_at - now).total_seconds()
        return _rejected(
            sent_at.isoformat(),
            f"is {ahead_s:.0f} s ahead of the clock here, may be {AHEAD_MAX.total_seconds():.0f}: set the sender's clock",
        )
    return None


def _rejected(value: str, reason: str) -> BuildRejected:
    return BuildRejected(request_id=None, field=SENT_AT, value=value, reason=reason)
