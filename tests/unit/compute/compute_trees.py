"""A host with a NUMA node, and the order to build on it."""

from uuid import UUID

from bus.messages.cell import (
    SpawnInstance,
)
from compute_sim.core.trees import TreeProvider
from engine.flavors import Flavor
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, ResourceAmount, Share
from laboratory.computes.driver import root_of

HOST = root_of("h1")

CHILD = ProviderId(UUID(int=2))

ROOT = TreeProvider(id=HOST, name="h1", inventories={"VCPU": ReportedInventory(total=8)})

NUMA = TreeProvider(id=CHILD, name="h1_NUMA0", parent=HOST)


def a_spawn(number: int = 1, host: str = "h1", attempt: int = 1) -> SpawnInstance:
    share = Share(host=root_of(host), amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=1),))
    instance = ConsumerId(UUID(int=number))
    return SpawnInstance(
        cell="c1", instance=instance, attempt=attempt, host=root_of(host), flavor=Flavor(), share=share
    )
