"""The contract of a compute's driver: the simulated one keeps it, and the kit finds each that breaks it."""

from collections.abc import Callable
from uuid import uuid4

import pytest
from msgspec import structs

from compute_sim.core.attempts import AttemptRecord, AttemptState, Work
from compute_sim.core.hosts import Pool
from compute_sim.core.trees import Allocations, ProviderTree, TreeProvider, flaw_of
from engine.inventories import ProviderId
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.faults import Changes, FaultScript
from laboratory.computes.hosts import HostSize, SimulatedHost, gpu, pci_function, virtual_functions
from tests.contracts.driver_contract import breaches
from tests.unit.compute.compute_trees import CHILD, NUMA, ROOT
from tests.unit.compute.test_compute_tree_diff import tree


@pytest.mark.parametrize(
    ("edited", "flaw"),
    [
        (ProviderTree(CHILD), "another root"),
        (tree(NUMA), "not its root"),
        (tree(ROOT, structs.replace(NUMA, parent=None)), "has no parent, and is not the root"),
        (tree(structs.replace(ROOT, parent=CHILD), NUMA), "is the root, and has a parent"),
        (tree(ROOT, structs.replace(NUMA, parent=CHILD)), "is not connected to the root"),
        (tree(ROOT, NUMA), "nothing"),
    ],
)
def test_a_tree_that_a_driver_must_not_make_is_detected(edited: ProviderTree, flaw: str) -> None:
    assert flaw in (flaw_of(tree(ROOT), edited) or "nothing")


STORAGE_POOL = Pool("c1-nfs", "DISK_GB", 500)

ADDRESSES = Pool("c1-net", "IPV4_ADDRESS", 250, "c1-*")

# Two cells with dedicated processors and huge pages; a device and a GPU in each by turns.
DEEP = HostSize(
    vcpus=4,
    ram_mb=1024,
    numa_nodes=2,
    pcpus=5,
    pages=((2048, 1026), (1048576, 3072)),
    devices=(
        virtual_functions(4, "net.1"),
        pci_function("10de", "1eb8", "CUSTOM_FAST"),
        gpu("nvidia_12", 1),
        gpu("nvidia_11", 2),
    ),
)

CONFORMING: dict[str, Callable[[], SimulatedDriver]] = {
    "plain": lambda: SimulatedDriver(SimulatedHost(name="h1")),
    "numa": lambda: SimulatedDriver(SimulatedHost(name="h1", size=HostSize(numa_nodes=3, vcpus=16))),
    "pci": lambda: SimulatedDriver(
        SimulatedHost(name="h1", size=HostSize(pci_devices=(frozenset(), frozenset({"CUSTOM_FAST"}))))
    ),
    "in depth": lambda: SimulatedDriver(SimulatedHost(name="h1", size=DEEP)),
    "diskless": lambda: SimulatedDriver(SimulatedHost(name="h1", size=HostSize(disk_gb=0))),
    "in pools": lambda: SimulatedDriver(SimulatedHost(name="h1"), None, (STORAGE_POOL, ADDRESSES)),
    "shrunk below its reserve": lambda: SimulatedDriver(
        SimulatedHost(name="h1"), FaultScript(faults=(Changes(ram_mb=-131_000),))
    ),
}


@pytest.mark.parametrize("kind", CONFORMING)
def test_the_simulated_driver_keeps_the_contract(kind: str) -> None:
    assert breaches(CONFORMING[kind]) == ()


class NewChildEachTime(SimulatedDriver):
    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        edited = super().update_provider_tree(tree, at_s)
        child = TreeProvider(id=ProviderId(uuid4()), name=f"new-{len(tree.providers)}", parent=edited.root)
        return structs.replace(edited, providers={**edited.providers, child.id: child})


class NeverRemoves(SimulatedDriver):
    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        edited = super().update_provider_tree(tree, at_s)
        return structs.replace(edited, providers={**tree.providers, **edited.providers})


class NeverStops(SimulatedDriver):
    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        return Work(5.0) if attempt.state is AttemptState.STOPPING else super().look_at(attempt, at_s)


class LosesInReshapes(SimulatedDriver):
    def reshape(self, known: ProviderTree, new: ProviderTree, allocations: Allocations) -> Allocations:  # noqa: ARG002
        return dict.fromkeys(allocations, ())


@pytest.mark.parametrize(
    ("wrong", "breach"),
    [
        (NewChildEachTime, "a call with its own result"),
        (NewChildEachTime, "a new driver, as after a restart"),
        (NeverRemoves, "stays in the tree after it no longer exists"),
        (NeverStops, "stopping twice: the work does not end"),
        (LosesInReshapes, "held DISK_GB 1, MEMORY_MB 1, VCPU 1, and would hold"),
    ],
)
def test_the_kit_finds_each_kind_of_bad_driver(wrong: type[SimulatedDriver], breach: str) -> None:
    found = breaches(lambda: wrong(SimulatedHost(name="h1", size=HostSize(numa_nodes=2))))

    assert any(breach in each for each in found), found
