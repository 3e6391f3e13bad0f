"""For stories: a cell or its computes that follow a script, and stations of schedulers that interfere with a claim, or die after it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID, uuid5

from bus.broker import Broker
from bus.message import Message
from bus.messages.build import (
    InstanceActive,
    InstanceDeleted,
    InstanceState,
)
from bus.messages.cell import (
    ConsoleTold,
    DestroyInstance,
    InstanceDestroyed,
    InstanceSpawned,
    PlaceInCell,
    RemoveFromCell,
    SpawnFailed,
    SpawnInstance,
    TellConsole,
)
from bus.messages.hosts import CheckHost, HeldAttempt, HostHolds
from bus.messages.placement import (
    ClaimAnswered,
    ClaimResources,
    ReleaseClaim,
)
from bus.messages.together import ClaimsAnswered, ClaimTogether
from bus.settings import BusSettings
from bus.topology import CELL0
from bus.workers.connections import Station
from bus.workers.consuming import Subscription
from bus.workers.handlers import Handlers, ReadOnly, Received, Said, Tell
from bus.workers.worker import Worker
from engine.flavors import InstanceId
from engine.inventories import ProviderId

M = TypeVar("M", bound=Message)


class ScriptedCell:
    """A conductor that reports each placed instance as active at once."""

    def __init__(self, cell: str, station: Station) -> None:
        self.cell = cell
        self.placed: list[PlaceInCell] = []
        self.removed: list[RemoveFromCell] = []
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


NAMES = UUID("6c0b1f9c-58a5-4f4c-9f62-8c1d2d1f5a01")
# What a host does with its orders.
BUILD, FAIL, FAIL_FIRST, SILENT = "build", "fail", "fail the first attempt", "silent"


def host_id(name: str) -> ProviderId:
    return ProviderId(uuid5(NAMES, name))


class ScriptedComputes:
    """The hosts of a cell: each follows its script, or builds at once; their orders are remembered. Nothing is answered to an
    order to build while the gate is shut.
    """

    def __init__(self, cell: str = "c1", **script: str) -> None:
        self.cell = cell
        # By the names of hosts.
        self.script = script
        self.spawns: list[SpawnInstance] = []
        # The attempts that the hosts have, and list when they are asked.
        self.held: set[tuple[ProviderId, HeldAttempt]] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    def workers(self, station: Station) -> tuple[Worker[None], Worker[None]]:
        work: Handlers = {
            SpawnInstance: self._on_spawn,
            DestroyInstance: self._on_destroy,
            CheckHost: self._on_check,
        }
        questions: Handlers = {TellConsole: ReadOnly(self._on_console)}
        return (
            Worker(station, Subscription(f"compute.{self.cell}.work", work, self)),
            Worker(station, Subscription(f"compute.{self.cell}.questions", questions, self)),
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def _on_spawn(self, orders: Sequence[Received[SpawnInstance]], _: None) -> list[Said]:
        self.spawns += [each.message for each in orders]
        self.held |= {_held(each.message) for each in orders}
        await self.gate.wait()
        return [Tell(word, each) for each in orders if (word := self._outcome(each.message)) is not None]

    async def _on_destroy(self, orders: Sequence[Received[DestroyInstance]], _: None) -> list[Said]:
        self.held -= {_held(each.message) for each in orders}
        return [
            Tell(_about(InstanceDestroyed, each.message), each)
            for each in orders
            if self._does(each.message.host) != SILENT
        ]

    async def _on_check(self, orders: Sequence[Received[CheckHost]], _: None) -> list[Said]:
        return [Tell(self._holds(each.message), each) for each in orders]

    async def _on_console(self, orders: Sequence[Received[TellConsole]]) -> list[Said]:
        return [
            Tell(ConsoleTold(cell=self.cell, question=one.question, text=f"console of {one.instance}"), each)
            for each in orders
            for one in (each.message,)
        ]

    def _holds(self, order: CheckHost) -> HostHolds:
        held = sorted(
            (each for host, each in self.held if host == order.host), key=lambda each: each.instance
        )
        return HostHolds(cell=order.cell, host=order.host, number=order.number, attempts=tuple(held))

    def _outcome(self, order: SpawnInstance) -> Message | None:
        does = self._does(order.host)
        if does == FAIL or (does == FAIL_FIRST and order.attempt == 1):
            return _about(SpawnFailed, order, reason="no image")
        return None if does == SILENT else _about(InstanceSpawned, order)

    def _does(self, host: ProviderId) -> str:
        return {host_id(name): what for name, what in self.script.items()}.get(host, BUILD)


def _held(order: SpawnInstance | DestroyInstance) -> tuple[ProviderId, HeldAttempt]:
    return order.host, HeldAttempt(instance=order.instance, attempt=order.attempt)


def _about(kind: type[M], order: SpawnInstance | DestroyInstance, **more: Any) -> M:
    return kind(cell=order.cell, instance=order.instance, attempt=order.attempt, host=order.host, **more)


def is_claim(question: Message) -> bool:
    """A probe is none: it only asks which share an instance holds."""
    return isinstance(question, ClaimTogether) or (
        isinstance(question, ClaimResources) and question.cell != CELL0
    )


class Interfering:
    """Runs an action once, between a scheduler's choice and its first claim, or before each claim; records placement's verdicts
    on the claims.
    """

    def __init__(
        self, action: Callable[[], Awaitable[object]] | None = None, *, always: bool = False
    ) -> None:
        self.action = action
        self._always = always
        self.verdicts: list[type[object]] = []

    def station(self, broker: Broker, name: str, *, settings: BusSettings, asks: bool) -> Station:
        interfering = self

        class InterferingStation(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                action = interfering.action
                if action is not None and any(map(is_claim, questions)):
                    interfering.action = action if interfering._always else None
                    await action()
                answers = await super().ask_all(questions)
                interfering.verdicts += [
                    type(answer.verdict)
                    for answer in answers
                    if isinstance(answer, ClaimAnswered | ClaimsAnswered)
                ]
                return answers

        return InterferingStation(broker, name, settings=settings, asks=asks)


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
