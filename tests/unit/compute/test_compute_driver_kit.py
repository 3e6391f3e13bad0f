"""The contract of a compute's driver: the simulated one keeps it, and the kit finds each that breaks it."""

from collections.abc import Callable
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.cell import (
    RespawnInstance,
    StartInstance,
    StopInstance,
)
from compute_sim.core.attempts import AttemptRecord, AttemptState, HostOrder, Work
from compute_sim.core.hosts import Pool
from compute_sim.core.trees import Allocations, CannotReshape, ProviderTree, TreeProvider, flaw_of
from compute_sim.drivers import Driver
from engine.inventories import ConsumerId, ProviderId, ReportedInventory
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

CONFORMING: dict[str, Callable[[], Driver]] = {
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


class BadDriver:
    """A driver that makes one mistake with the tree of a correct one."""

    made = 0

    def __init__(self, wrong: Callable[[ProviderTree, ProviderTree], ProviderTree]) -> None:
        self._honest = SimulatedDriver(SimulatedHost(name="h1"))
        self._wrong = wrong
        self.root, self.host = self._honest.root, self._honest.host
        self.next_change_s, self.condition = self._honest.next_change_s, self._honest.condition
        self.begin, self.look_at = self._honest.begin, self._honest.look_at
        self.wake_with, self.stopped = self._honest.wake_with, self._honest.stopped
        self.console, self.why_broken = self._honest.console, self._honest.why_broken
        self.metrics, self.images = self._honest.metrics, self._honest.images
        self.reshape, self.reshaped = self._honest.reshape, self._honest.reshaped

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:
        return self._wrong(tree, self._honest.update_provider_tree(tree, at_s))


def _root_with(edited: ProviderTree, **changes: object) -> ProviderTree:
    root = structs.replace(edited.providers[edited.root], **changes)
    return structs.replace(edited, providers={**edited.providers, edited.root: root})


def _new_child_each_time(_: ProviderTree, edited: ProviderTree) -> ProviderTree:
    BadDriver.made += 1
    child = TreeProvider(
        id=ProviderId(UUID(int=BadDriver.made)), name=f"new-{BadDriver.made}", parent=edited.root
    )
    return structs.replace(edited, providers={**edited.providers, child.id: child})


def _never_removes(given: ProviderTree, edited: ProviderTree) -> ProviderTree:
    return structs.replace(edited, providers={**given.providers, **edited.providers})


def _reserves_too_much(_: ProviderTree, edited: ProviderTree) -> ProviderTree:
    return _root_with(edited, inventories={"VCPU": ReportedInventory(total=4, reserved=5)})


def _only_once(given: ProviderTree, edited: ProviderTree) -> ProviderTree:
    return given if given.providers else edited


def _nothing_at_all(given: ProviderTree, _: ProviderTree) -> ProviderTree:
    return given


@pytest.mark.parametrize(
    ("wrong", "breach"),
    [
        (_new_child_each_time, "a call with its own result"),
        (_new_child_each_time, "a new driver, as after a restart"),
        (_never_removes, "stays in the tree after it no longer exists"),
        (_reserves_too_much, "reserves 5 of 4 VCPU"),
        (_only_once, "does not restore lost inventories"),
        (_nothing_at_all, "does not create the root"),
    ],
)
def test_the_kit_finds_each_kind_of_bad_driver(
    wrong: Callable[[ProviderTree, ProviderTree], ProviderTree], breach: str
) -> None:
    found = breaches(lambda: BadDriver(wrong))

    assert any(breach in each for each in found), found


class NeverStops(SimulatedDriver):
    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        return Work(5.0) if attempt.state is AttemptState.STOPPING else super().look_at(attempt, at_s)


class KnowsOnlyItsOwnWork(SimulatedDriver):
    """A new process of it knows nothing of what the one before has begun."""

    def __init__(self, host: SimulatedHost) -> None:
        super().__init__(host)
        self._begun: set[ConsumerId] = set()

    def begin(self, order: HostOrder, at_s: float) -> Work:
        self._begun.add(order.instance)
        return super().begin(order, at_s)

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        if attempt.state is AttemptState.BUILDING and attempt.instance not in self._begun:
            return Work(failure="unknown")
        return super().look_at(attempt, at_s)


class StartsOnlyWhatHasStopped(SimulatedDriver):
    """It refuses to start an instance while that is being stopped."""

    def __init__(self, host: SimulatedHost) -> None:
        super().__init__(host)
        self._stopping: set[ConsumerId] = set()
        self._refused: set[ConsumerId] = set()

    def begin(self, order: HostOrder, at_s: float) -> Work:
        if isinstance(order, StopInstance):
            self._stopping.add(order.instance)
        elif isinstance(order, StartInstance):
            self._refused |= self._stopping & {order.instance}
        return super().begin(order, at_s)

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        if attempt.state is AttemptState.STOPPING:
            self._stopping.discard(attempt.instance)
        if attempt.state is AttemptState.STARTING and attempt.instance in self._refused:
            return Work(failure="it is being stopped")
        return super().look_at(attempt, at_s)


class ReceivesOnlyFromOthers(SimulatedDriver):
    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:
        if attempt.state is AttemptState.RECEIVING:
            return Work(failure="it is here already")
        return super().look_at(attempt, at_s)


@pytest.mark.parametrize(
    ("wrong", "breach"),
    [
        (NeverStops, "stopping twice: the work does not end"),
        (KnowsOnlyItsOwnWork, "building in a new driver, as after a restart: the work fails: unknown"),
        (
            StartsOnlyWhatHasStopped,
            "starting while the work of StopInstance goes on: the work fails: it is being stopped",
        ),
        (ReceivesOnlyFromOthers, "receiving from itself: the work fails: it is here already"),
    ],
)
def test_the_kit_finds_each_kind_of_driver_that_works_badly(
    wrong: Callable[[SimulatedHost], Driver], breach: str
) -> None:
    assert breach in breaches(lambda: wrong(SimulatedHost(name="h1")))


class LosesInReshapes(SimulatedDriver):
    def reshape(self, known: ProviderTree, new: ProviderTree, allocations: Allocations) -> Allocations:  # noqa: ARG002
        return dict.fromkeys(allocations, ())


class PutsAllOnItsRoot(SimulatedDriver):
    def reshape(self, known: ProviderTree, new: ProviderTree, allocations: Allocations) -> Allocations:  # noqa: ARG002
        return {
            consumer: tuple([structs.replace(each, provider=new.root) for each in held])
            for consumer, held in allocations.items()
        }


class RefusesWithoutAReason(SimulatedDriver):
    def reshape(self, known: ProviderTree, new: ProviderTree, allocations: Allocations) -> CannotReshape:  # noqa: ARG002
        return CannotReshape("")


@pytest.mark.parametrize(
    ("wrong", "breach"),
    [
        (LosesInReshapes, "held DISK_GB 1, MEMORY_MB 1, VCPU 1, and would hold"),
        (PutsAllOnItsRoot, "h1 gives VCPU, and has none"),
        (PutsAllOnItsRoot, "it finds room for more than its host has"),
        (RefusesWithoutAReason, "it refuses, and does not say why"),
    ],
)
def test_the_kit_finds_drivers_that_reshape_badly(
    wrong: Callable[[SimulatedHost], Driver], breach: str
) -> None:
    found = breaches(lambda: wrong(SimulatedHost(name="h1", size=HostSize(numa_nodes=2))))

    assert any(breach in each for each in found), found


class KnowsOnlyItsPresentShape(SimulatedDriver):
    def begin(self, order: HostOrder, at_s: float) -> Work:
        if isinstance(order, RespawnInstance) and order.share.amounts[0].provider != self.root:
            return Work(failure="that provider is gone")
        return super().begin(order, at_s)


def test_the_kit_finds_a_driver_that_does_not_obey_after_a_reshape() -> None:
    found = breaches(lambda: KnowsOnlyItsPresentShape(SimulatedHost(name="h1")))

    assert found == ("rebuilding with an old share: the work fails: that provider is gone",)


def test_numa_nodes_have_all_cpus_and_memory_among_them() -> None:
    driver = SimulatedDriver(
        SimulatedHost(name="h1", size=HostSize(vcpus=17, ram_mb=1025, ram_mb_reserved=7, numa_nodes=2))
    )

    built = driver.update_provider_tree(ProviderTree(driver.root), 0)

    parts = [each.inventories for each in built.providers.values() if each.parent]
    assert [each["VCPU"].total for each in parts] == [9, 8]
    assert [(each["MEMORY_MB"].total, each["MEMORY_MB"].reserved) for each in parts] == [(513, 4), (512, 3)]
    assert set(built.providers[driver.root].inventories) == {"DISK_GB"}


def test_pci_devices_are_in_the_numa_nodes_by_turns_or_below_the_root() -> None:
    devices = (frozenset({"CUSTOM_FAST"}), frozenset[str](), frozenset[str]())

    def parents(numa_nodes: int) -> list[str | None]:
        driver = SimulatedDriver(
            SimulatedHost(name="h1", size=HostSize(numa_nodes=numa_nodes, pci_devices=devices))
        )
        built = driver.update_provider_tree(ProviderTree(driver.root), 0).providers
        found = [each for each in built.values() if "PCI_DEVICE" in each.inventories]
        assert [each.traits for each in found] == [*devices]
        return [built[each.parent].name for each in found if each.parent]

    assert parents(2) == ["h1_NUMA0", "h1_NUMA1", "h1_NUMA0"]
    assert parents(0) == ["h1"] * 3


def test_cells_have_their_parts_of_dedicated_processors_and_pages_and_devices_by_turns() -> None:
    driver = SimulatedDriver(SimulatedHost(name="h1", size=DEEP))

    built = driver.update_provider_tree(ProviderTree(driver.root), 0).providers

    by_name = {each.name: each for each in built.values()}
    assert {
        name: {resource: (each.total, each.step_size) for resource, each in by_name[name].inventories.items()}
        for name in ("h1_NUMA0", "h1_NUMA1")
    } == {
        "h1_NUMA0": {
            "VCPU": (2, 1),
            "MEMORY_MB": (512, 1),
            "PCPU": (3, 1),
            "CUSTOM_MEMORY_MB_PAGES_2048": (514, 2),
            "CUSTOM_MEMORY_MB_PAGES_1048576": (2048, 1024),
        },
        "h1_NUMA1": {
            "VCPU": (2, 1),
            "MEMORY_MB": (512, 1),
            "PCPU": (2, 1),
            "CUSTOM_MEMORY_MB_PAGES_2048": (512, 2),
            "CUSTOM_MEMORY_MB_PAGES_1048576": (1024, 1024),
        },
    }
    function, passed, first, second = (by_name[f"h1_0000:{bus}:00.0"] for bus in (81, 82, 83, 84))
    assert {each.name: built[each.parent].name for each in (function, passed) if each.parent} == {
        function.name: "h1_NUMA0",
        passed.name: "h1_NUMA1",
    }
    assert {name: each.total for name, each in function.inventories.items()} == {"SRIOV_NET_VF": 4}
    assert function.traits == {"CUSTOM_PHYSNET_NET_1", "CUSTOM_VNIC_TYPE_DIRECT"}
    assert set(passed.inventories) == {"CUSTOM_PCI_10DE_1EB8"}
    assert passed.traits == {"CUSTOM_FAST"}
    assert set(first.inventories) == set(second.inventories) == {"VGPU"}
    assert first.traits == {"CUSTOM_NVIDIA_12"}
    assert second.traits == {"CUSTOM_NVIDIA_11"}
