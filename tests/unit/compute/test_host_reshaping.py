"""A compute brings a host into a new shape: it begins again when something changed, and says why it cannot."""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

import pytest

from bus.message import Message
from bus.messages.administration import ConsumerMoved
from bus.messages.hosts import (
    AskHostShape,
    HostHolder,
    HostReshaped,
    HostShapeFound,
    ReshapeHost,
    ReshapeVerdict,
)
from bus.messages.placement import ReportAccepted
from bus.workers.station import Station  # noqa: TC001 - imported like every other type
from compute_sim.core.trees import Accepted, Allocations, ProviderTree, ReportRefused
from compute_sim.reporting import TRIES_MAX, HostReshaper
from engine.inventories import ConsumerId, InventoryState, ProviderId, ProviderState, ResourceAmount
from engine.refusals import NotAllowed, ShapeMoved
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.hosts import HostSize, SimulatedHost

pytestmark = pytest.mark.asyncio

WEB = ConsumerId(UUID(int=0xE001))
# An administrator has made it below the host.
CARD = ProviderId(UUID(int=0xE002))


def a_driver(vcpus: int = 8) -> SimulatedDriver:
    size = HostSize(vcpus=vcpus, ram_mb=8_000, ram_mb_reserved=0, vcpu_ratio=1.0, numa_nodes=2)
    return SimulatedDriver(SimulatedHost(name="h1", size=size))


class RememberingDriver(SimulatedDriver):
    written: Allocations | None = None

    def reshaped(self, allocations: Allocations) -> None:
        self.written = allocations


class Placement:
    """Answers for a flat host on which one instance holds three CPUs, and a card below it; and gives these verdicts on reshapes."""

    def __init__(self, driver: SimulatedDriver, *verdicts: ReshapeVerdict, is_known: bool = True) -> None:
        self.orders: list[ReshapeHost] = []
        self.asked = 0
        self._verdicts = list(verdicts)
        stock = {"VCPU": InventoryState(total=8, used=3), "MEMORY_MB": InventoryState(total=8_000)}
        root = ProviderState(
            internal=1, id=driver.root, name="h1", root=driver.root, shape=4, inventories=stock
        )
        card = ProviderState(
            internal=2,
            id=CARD,
            name="card",
            root=driver.root,
            parent=driver.root,
            made_by_name=True,
            inventories={"VGPU": InventoryState(total=1, used=1)},
        )
        held = (
            ResourceAmount(provider=driver.root, resource="VCPU", amount=3),
            ResourceAmount(provider=CARD, resource="VGPU", amount=1),
        )
        self._found = HostShapeFound(
            root=driver.root,
            providers=(root, card) if is_known else (),
            holders=(HostHolder(consumer=WEB, generation=2, amounts=held),) if is_known else (),
        )

    async def ask(self, question: Message) -> Message:
        if isinstance(question, AskHostShape):
            self.asked += 1
            return self._found
        assert isinstance(question, ReshapeHost)
        self.orders.append(question)
        verdict = self._verdicts.pop(0) if len(self._verdicts) > 1 else self._verdicts[0]
        return HostReshaped(root=question.root, verdict=verdict)


ACCEPTED = ReportAccepted(shape=6, shape_moved=True)


async def reshaped(driver: SimulatedDriver, placement: Placement) -> Accepted | ReportRefused:
    tree = driver.update_provider_tree(ProviderTree(driver.root), 0.0)
    reshaper = HostReshaper(cast("Station", placement), "c1", 0.001)
    return await reshaper.reshape(driver, tree, 7)


def gets(order: ReshapeHost) -> Sequence[tuple[str, int]]:
    names = {each.id: each.name for each in order.providers} | {CARD: "card"}
    return [(names[each.provider], each.amount) for one in order.moved for each in one.amounts]


async def test_the_order_names_what_was_seen_and_where_everything_goes() -> None:
    driver = RememberingDriver(a_driver().host)
    placement = Placement(driver, ACCEPTED)

    answer = await reshaped(driver, placement)

    assert isinstance(answer, Accepted)
    assert answer.reporting.sequence == 7
    (order,) = placement.orders
    assert (order.shape, order.moved[0].generation, gets(order)) == (4, 2, [("card", 1), ("h1_NUMA0", 3)])
    assert driver.written == {WEB: order.moved[0].amounts}


async def test_what_changed_meanwhile_begins_it_again_with_another_sequence() -> None:
    driver = RememberingDriver(a_driver().host)
    moved = ConsumerMoved(consumer=WEB, seen=2, current=3)
    placement = Placement(driver, ShapeMoved(roots=(driver.root,)), moved, ACCEPTED)

    answer = await reshaped(driver, placement)

    assert isinstance(answer, Accepted)
    assert placement.asked == 3
    assert [order.sequence for order in placement.orders] == [7, 8, 9]
    assert answer.reporting.sequence == 9


async def test_a_host_that_never_rests_is_refused_after_some_tries() -> None:
    driver = a_driver()
    placement = Placement(driver, ShapeMoved(roots=(driver.root,)))

    answer = await reshaped(driver, placement)

    assert isinstance(answer, ReportRefused)
    assert f"after {TRIES_MAX} tries" in answer.reason
    assert placement.asked == TRIES_MAX


async def test_a_refusal_says_why_and_orders_nothing_that_cannot_be() -> None:
    small, fine = a_driver(vcpus=2), RememberingDriver(a_driver().host)
    no_room, unknown = Placement(small, ACCEPTED), Placement(fine, ACCEPTED, is_known=False)
    foreign = Placement(fine, NotAllowed(field="cell", reason="it is of another cell"))

    said = [await reshaped(small, no_room), await reshaped(fine, unknown), await reshaped(fine, foreign)]

    reasons = [each.reason for each in said if isinstance(each, ReportRefused)]
    assert len(reasons) == 3
    assert f"consumer {WEB} holds VCPU 3 of h1: of 3 VCPU the new shape has room for 2" in reasons[0]
    assert "placement has no tree of this host" in reasons[1]
    assert "it is of another cell" in reasons[2]
    assert not no_room.orders
    assert fine.written is None


class LosingDriver(SimulatedDriver):
    def reshape(self, known: ProviderTree, new: ProviderTree, allocations: Allocations) -> Allocations:  # noqa: ARG002
        return dict.fromkeys(allocations, ())


async def test_a_driver_that_loses_something_is_told_so() -> None:
    driver = LosingDriver(a_driver().host)
    placement = Placement(driver, ACCEPTED)

    answer = await reshaped(driver, placement)

    assert isinstance(answer, ReportRefused)
    assert "the driver breaks its contract" in answer.reason
    assert "held VCPU 3, VGPU 1, and would hold" in answer.reason
    assert not placement.orders
