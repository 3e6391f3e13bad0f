"""A conductor of one cell with placement, computes and a clock that are held by the test."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from bus.message import Message
from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed, InstanceState
from bus.messages.cell import (
    PlaceInCell,
    RemoveFromCell,
)
from bus.messages.placement import ClaimAnswered, ClaimResources
from cell_conductor.core.rows import Instance
from cell_conductor.settings import ConductorPace, ConductorSettings
from cell_conductor.store_sql import ConductorStore
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import Choice, ConsumerId, ResourceAmount, Share
from engine.refusals import Claimed
from kit.process import Part
from tests.contracts.stores import open_conductor_stores
from tests.stories.cloud import Cloud, a_host, cloud
from tests.stories.scripted import ScriptedComputes, host_id
from tests.waiting import Clock, until

CONDUCTING = ConductorSettings(attempt_timeout_s=60)
PACE = ConductorPace(poll_s=0.005, look_s=1, retry_delay_s_first=1, retry_delay_s_max=4, remind_every_s=300)


class CellSetup:
    """A conductor of c1, with placement, scripted computes and a clock that the test holds."""

    def __init__(
        self,
        running: Cloud,
        stores: tuple[ConductorStore, ...],
        clock: Clock[datetime],
        events: list[Message],
    ) -> None:
        self.cloud, self.events = running, events
        self.store = stores[0]
        # Another process on the same rows.
        self.store_of_heir = stores[1]
        self.clock = clock
        self.computes = ScriptedComputes()

    @property
    def heard(self) -> list[InstanceState]:
        """The instances in the events that end them."""
        ends = (InstanceActive, InstanceFailed, InstanceDeleted)
        return [each.instance for each in self.events if isinstance(each, ends)]

    def conducting(
        self, name: str = "conductor", *, heir: bool = False, **more: Any
    ) -> AbstractAsyncContextManager[Sequence[Part]]:
        store = self.store_of_heir if heir else self.store
        return self.cloud.conductor(
            store, name=name, settings=CONDUCTING, pace=PACE, clock=self.clock, **more
        )

    async def hosts(self, **script: str) -> None:
        """Hosts with room for four instances each."""
        self.computes.script |= script
        for name in script:
            await self.cloud.report(a_host(name, vcpu=4))

    async def claim(self, order: PlaceInCell) -> PlaceInCell:
        """Claim the instance's share, as a scheduler does before it hands over to the cell."""
        answer = await self.cloud.ask(
            ClaimResources(
                cell="c1",
                consumer=order.instance,
                attempt=order.attempt,
                issued_at=order.issued_at,
                share=order.chosen.share,
            ),
            ClaimAnswered,
        )
        assert answer.verdict == Claimed()
        return order

    async def place(self, order: PlaceInCell) -> None:
        await self.cloud.send(await self.claim(order))

    async def until_row(self, order: PlaceInCell, condition: Callable[[Instance], bool]) -> Instance:
        (row,) = await until(
            lambda: self.store.read([order.instance]), "its row", lambda rows: any(map(condition, rows))
        )
        return row

    async def told(self, order: PlaceInCell) -> InstanceState:
        """The first event that ends this instance."""
        return await until(lambda: next((each for each in self.heard if each.id == order.instance), None))

    async def told_deleted(self, order: PlaceInCell) -> InstanceState:
        found = await until(
            lambda: [each for each in self.heard if each.id == order.instance and each.state == "deleted"]
        )
        return found[0]

    def ends(self, order: PlaceInCell) -> list[str]:
        """All events that end an instance; repeated ones count once."""
        by_sequence = {each.sequence: each.state for each in self.heard if each.id == order.instance}
        return [by_sequence[each] for each in sorted(by_sequence)]


def choice(name: str, vcpu: int = 1) -> Choice:
    root = host_id(name)
    amounts = (ResourceAmount(provider=root, resource="VCPU", amount=vcpu),)
    return Choice(name=name, share=Share(host=root, amounts=amounts))


def order_for(
    number: int, chosen: str, *alternates: str, vcpu: int = 1, ends_in_s: int = 3600
) -> PlaceInCell:
    now = datetime.now(UTC)
    return PlaceInCell(
        cell="c1",
        instance=InstanceId(ConsumerId(UUID(int=number))),
        request_id=RequestId(UUID(int=1000 + number)),
        sequence=2,
        attempt=1,
        issued_at=now,
        ends_by=now + timedelta(seconds=ends_in_s),
        flavor=Flavor(vcpus=vcpu, ram_mb=64),
        chosen=choice(chosen, vcpu),
        alternates=tuple(choice(each, vcpu) for each in alternates),
        name=f"instance-{number}",
    )


def removal(order: PlaceInCell) -> RemoveFromCell:
    return RemoveFromCell(
        cell="c1", instance=order.instance, request_id=order.request_id, sequence=3, issued_at=order.issued_at
    )


@asynccontextmanager
async def cell_setup(bus: str, books: str, *, conducted: bool = True) -> AsyncIterator[CellSetup]:
    clock = Clock(datetime.now(UTC))
    async with (
        cloud(bus, books, scripted=()) as running,
        open_conductor_stores(books, ("c1", "c1"), clock) as stores,
        running.placement(),
        running.listening("instance.*.c1") as events,
    ):
        setup = CellSetup(running, stores, clock, events)
        async with (
            running.running(setup.computes.workers(running.stations_in["c1"])),
            setup.conducting() if conducted else nullcontext(),
        ):
            yield setup
