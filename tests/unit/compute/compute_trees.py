"""A host with a NUMA node, and the order to build on it."""

from uuid import UUID

from compute_sim.core.trees import TreeProvider
from engine.inventories import ProviderId, ReportedInventory
from laboratory.computes.driver import root_of

HOST = root_of("h1")

CHILD = ProviderId(UUID(int=2))

ROOT = TreeProvider(id=HOST, name="h1", inventories={"VCPU": ReportedInventory(total=8)})

NUMA = TreeProvider(id=CHILD, name="h1_NUMA0", parent=HOST)
