"""A compute brings a host into a new shape: what is held goes along, also of providers that others have made below the host."""

from typing import cast
from uuid import UUID

from bus.message import Message
from bus.messages.hosts import AskHostShape, HostHolder, HostReshaped, HostShapeFound, ReshapeHost
from bus.messages.placement import ReportAccepted
from bus.workers.connections import Station  # noqa: TC001 - imported like every other type
from compute_sim.core.trees import Accepted, ProviderTree
from compute_sim.reporting import HostReshaper
from engine.inventories import ConsumerId, InventoryState, ProviderId, ProviderState, ResourceAmount
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.hosts import HostSize, SimulatedHost

WEB = ConsumerId(UUID(int=0xE001))
DRIVER = SimulatedDriver(SimulatedHost(name="h1", size=HostSize(vcpus=8, numa_nodes=2)))
ROOT, CARD = DRIVER.root, ProviderId(UUID(int=0xE002))
# A flat host on which one instance holds three CPUs, and a card below it that an administrator has made.
FOUND = HostShapeFound(
    root=ROOT,
    providers=(
        ProviderState(
            internal=1,
            id=ROOT,
            name="h1",
            root=ROOT,
            shape=4,
            inventories={"VCPU": InventoryState(total=8, used=3)},
        ),
        ProviderState(
            internal=2,
            id=CARD,
            name="card",
            root=ROOT,
            parent=ROOT,
            made_by_name=True,
            inventories={"VGPU": InventoryState(total=1, used=1)},
        ),
    ),
    holders=(
        HostHolder(
            consumer=WEB,
            generation=2,
            amounts=(
                ResourceAmount(provider=ROOT, resource="VCPU", amount=3),
                ResourceAmount(provider=CARD, resource="VGPU", amount=1),
            ),
        ),
    ),
)


class Placement:
    async def ask(self, question: Message) -> Message:
        if isinstance(question, AskHostShape):
            return FOUND
        assert isinstance(question, ReshapeHost)
        self.order = question
        return HostReshaped(root=ROOT, verdict=ReportAccepted(shape=6, shape_moved=True))


async def test_the_order_names_what_was_seen_and_where_everything_goes() -> None:
    placement, tree = Placement(), DRIVER.update_provider_tree(ProviderTree(ROOT), 0.0)

    answer = await HostReshaper(cast("Station", placement), "c1", 0.001).reshape(DRIVER, tree, 7)

    assert isinstance(answer, Accepted)
    order = placement.order
    names = {each.id: each.name for each in order.providers} | {CARD: "card"}
    assert (order.shape, order.sequence, order.moved[0].generation) == (4, 7, 2)
    assert [(names[each.provider], each.amount) for each in order.moved[0].amounts] == [
        ("card", 1),
        ("h1_NUMA0", 3),
    ]
