"""For stories: a cell that follows a script, and stations of schedulers that interfere with a claim, or die after it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from bus.broker import Broker
from bus.message import Message
from bus.messages.administration import ClaimsAnswered, ClaimTogether
from bus.messages.build import (
    InstanceActive,
    InstanceDeleted,
    InstanceState,
)
from bus.messages.cell import PlaceInCell, RemoveFromCell
from bus.messages.placement import (
    ClaimAnswered,
    ClaimResources,
    ReleaseClaim,
)
from bus.settings import BusSettings
from bus.topology import CELL0
from bus.workers.consuming import Subscription
from bus.workers.handling import Received, Said, Tell
from bus.workers.station import Station
from bus.workers.worker import Worker
from engine.flavors import InstanceId


class ScriptedCell:
    """A conductor that reports each placed instance as active at once; a silent one reports nothing."""

    def __init__(self, cell: str, station: Station) -> None:
        self.cell = cell
        self.placed: list[PlaceInCell] = []
        self.removed: list[RemoveFromCell] = []
        self.is_silent = False
        self._orders = dict[InstanceId, PlaceInCell]()
        self.worker = Worker(
            station,
            Subscription(
                f"conductor.{cell}.work", {PlaceInCell: self._on_place, RemoveFromCell: self._on_remove}, self
            ),
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def _on_place(self, orders: Sequence[Received[PlaceInCell]], _: None) -> list[Said]:
        said: list[Said] = []
        for each in orders:
            order = each.message
            if order.instance in self._orders:
                continue
            self._orders[order.instance] = order
            self.placed.append(order)
            if not self.is_silent:
                said.append(Tell(InstanceActive(cell=self.cell, instance=self._state(order, "active", 101))))
        return said

    async def _on_remove(self, orders: Sequence[Received[RemoveFromCell]], _: None) -> list[Said]:
        said: list[Said] = []
        for each in orders:
            self.removed.append(each.message)
            order = self._orders[each.message.instance]
            released = ReleaseClaim(
                cell=self.cell, consumer=order.instance, attempt=order.attempt, issued_at=order.issued_at
            )
            gone = InstanceDeleted(cell=self.cell, instance=self._state(order, "deleted", 102))
            said += [Tell(released), Tell(gone)]
        return said

    def _state(self, order: PlaceInCell, state: str, sequence: int) -> InstanceState:
        return InstanceState(
            id=order.instance,
            request_id=order.request_id,
            sequence=sequence,
            state=state,
            cell=self.cell,
            host=order.chosen.name,
            attempt=order.attempt,
            name=order.name,
            project=order.project,
        )


def is_claim(question: Message) -> bool:
    """A probe is none: it only asks which share an instance holds."""
    return isinstance(question, ClaimTogether) or (
        isinstance(question, ClaimResources) and question.cell != CELL0
    )


class InterferingOnce:
    """Runs an action once, between a scheduler's choice and its first claim (or before the first question that is
    `before`); records placement's verdicts on its claims.
    """

    def __init__(
        self, action: Callable[[], Awaitable[object]], before: Callable[[Message], bool] = is_claim
    ) -> None:
        self.action = action
        self._before = before
        self._is_done = False
        self.verdicts: list[type[object]] = []

    def station(self, broker: Broker, name: str, *, settings: BusSettings, asks: bool) -> Station:
        interfering = self

        class InterferingStation(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                if any(map(interfering._before, questions)):
                    await interfering.interfere()
                answers = await super().ask_all(questions)
                interfering.verdicts += [
                    type(answer.verdict)
                    for answer in answers
                    if isinstance(answer, ClaimAnswered | ClaimsAnswered)
                ]
                return answers

        return InterferingStation(broker, name, settings=settings, asks=asks)

    async def interfere(self) -> None:
        if not self._is_done:
            self._is_done = True
            await self.action()


class DiesAfterItsClaim:
    """Dies after placement has granted its claims, before it publishes anything."""

    def __init__(self) -> None:
        self.claimed = asyncio.Event()

    def station(self, broker: Broker, name: str, *, settings: BusSettings, asks: bool) -> Station:
        claimed = self.claimed

        class DyingStation(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                answers = await super().ask_all(questions)
                if any(map(is_claim, questions)):
                    claimed.set()
                    await asyncio.Event().wait()
                return answers

        return DyingStation(broker, name, settings=settings, asks=asks)
