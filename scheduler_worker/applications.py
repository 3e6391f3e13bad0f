"""Which applications there are, and what they hear: events of their projects, said again on the feed.

Between workers, events keep their large parcels, of all projects. Only what concerns the project of an application is
said a second time, and where there is no application, nothing is. The publisher adds the second copy to whatever leaves
by it, so what is said again after a crash is said again on the feed, too.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence

from bus.handling import Answer, Handlers, Reading, Received, Said, Tell
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
from scheduler_worker.instances import CELL0, CellsWord
from scheduler_worker.late import LateTransaction
from scheduler_worker.store import SchedulerStore


class Applications(Periodic):
    """The registered applications, as this process knows them. A part: it looks for what other workers wrote."""

    def __init__(
        self,
        store: SchedulerStore,
        publisher: Publisher,
        poll_s: float,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("look for applications", self.refresh, poll_s, is_needed=True, chance=chance)
        self._store = store
        self._publisher = publisher
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
        """Other workers find it at their next look."""
        transaction = await late.begun()
        answers: list[Said] = []
        for ask in asks:
            order = ask.message
            registered = (
                None
                if order.removed
                else KnownApplication(name=order.name, projects=order.projects, admin=order.admin)
            )
            if registered is None:
                await transaction.remove_application(order.name)
            else:
                await transaction.save_application(registered)
            answers.append(Answer(ask, ApplicationSet(application=registered)))
        return answers

    async def _on_ask(self, asks: Sequence[Received[AskApplications]]) -> list[Said]:
        found = ApplicationsFound(applications=tuple(await self._store.applications()))
        return [Answer(ask, found) for ask in asks]
