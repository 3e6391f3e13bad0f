"""A simulated host with dedicated processors, pages and devices gives none of them to two instances."""

from collections.abc import Mapping

import pytest

from bus.messages.cell import DestroyInstance, SpawnInstance
from compute_sim.core.trees import ProviderTree
from engine.flavors import Flavor
from engine.inventories import ConsumerId, ResourceAmount, Share
from laboratory.computes.faults import FailsToBuild, FaultScript
from laboratory.computes.hosts import HostSize, SimulatedHost
from tests.contracts.placement_orders import an_id
from tests.simulation.given_shares import CountingDriver
from tests.unit.compute.test_compute_driver_kit import DEEP

PAGES = "CUSTOM_MEMORY_MB_PAGES_2048"
PINNED = Flavor(vcpus=2, ram_mb=4, extra_specs={"hw:cpu_policy": "dedicated", "hw:mem_page_size": "2MB"})
IN_CELL_0 = {"h1_NUMA0": {"PCPU": 2, PAGES: 4}}
CARD, VIRTUAL = "h1_0000:81:00.0", "SRIOV_NET_VF"


class Complaining(CountingDriver):
    def __init__(self, size: HostSize = DEEP, script: FaultScript | None = None) -> None:
        super().__init__(SimulatedHost(name="h1", size=size), script)
        self.complaints: list[str] = []

    def complain(self, _order: object, words: str) -> None:
        self.complaints.append(words)

    def spawn(
        self,
        instance: str,
        share: Mapping[str, Mapping[str, int]],
        attempt: int = 1,
        flavor: Flavor = PINNED,
        at_s: float = 0.0,
    ) -> str:
        """Build an instance; the failure."""
        providers = self.update_provider_tree(ProviderTree(self.root), 0).providers
        ids = {each.name: each.id for each in providers.values()}
        amounts = tuple(
            ResourceAmount(provider=ids[name], resource=resource, amount=amount)
            for name, classes in share.items()
            for resource, amount in classes.items()
        )
        order = SpawnInstance(
            cell="c1",
            instance=ConsumerId(an_id(instance)),
            attempt=attempt,
            host=self.root,
            flavor=flavor,
            share=Share(host=self.root, amounts=amounts),
        )
        return self.begin(order, at_s).failure

    def destroy(self, instance: str, attempt: int = 1) -> None:
        who = ConsumerId(an_id(instance))
        self.begin(DestroyInstance(cell="c1", instance=who, attempt=attempt, host=self.root), 0.0)


@pytest.mark.parametrize(
    ("shares", "complaint"),
    [
        ([IN_CELL_0, {"h1_NUMA1": {"PCPU": 2, PAGES: 4}}], ""),
        ([IN_CELL_0, IN_CELL_0], "h1_NUMA0 has 3 PCPU, and 2 instances are given 4"),
        ([{"h1_NUMA0": {"PCPU": 2, "MEMORY_MB": 4}}], "the share has memory in MEMORY_MB"),
        ([{"h1_NUMA0": {"PCPU": 1, PAGES: 4}}], "guest cell 0 takes"),
        ([{"h1_NUMA0": {"PCPU": 2}, "h1_NUMA1": {PAGES: 4}}], "guest cell 0 takes"),
        ([{**IN_CELL_0, "h1": {"VGPU": 1}}], "h1 has no VGPU"),
        ([{**IN_CELL_0, CARD: {VIRTUAL: 4}}], ""),
        ([{**IN_CELL_0, CARD: {VIRTUAL: 5}}], f"{CARD} has 4 {VIRTUAL}, and 1 instances are given 5"),
    ],
)
def test_a_share_that_the_host_cannot_give_fails_and_is_complained_of(
    shares: list[Mapping[str, Mapping[str, int]]], complaint: str
) -> None:
    driver = Complaining()

    failures = [driver.spawn(str(number), share) for number, share in enumerate(shares)]

    assert bool(failures[-1]) == bool(complaint)
    assert complaint in "; ".join(driver.complaints)
    assert len(driver.complaints) == bool(complaint)
    # What was refused is not held.
    if complaint and len(shares) > 1:
        driver.destroy("0")
        assert not driver.spawn("other", shares[1])


def test_virtual_functions_go_to_as_many_instances_as_there_are() -> None:
    driver = Complaining()
    plain = Flavor(vcpus=1, ram_mb=1)
    share = {"h1_NUMA0": {"VCPU": 1, "MEMORY_MB": 1}}

    assert not driver.spawn("a", {**share, CARD: {VIRTUAL: 1}}, flavor=plain)
    assert not driver.spawn("b", {**share, CARD: {VIRTUAL: 3}}, flavor=plain)
    assert driver.spawn("c", {**share, CARD: {VIRTUAL: 1}}, flavor=plain)
    driver.destroy("a")
    assert not driver.spawn("c", {**share, CARD: {VIRTUAL: 1}}, flavor=plain)


def test_attempts_of_one_instance_are_the_same_instance() -> None:
    driver = Complaining()

    assert not driver.spawn("a", IN_CELL_0)
    # A resize on its own host.
    assert not driver.spawn("a", {"h1_NUMA0": {"PCPU": 3, PAGES: 4}}, 2, Flavor(vcpus=3, ram_mb=4))
    driver.destroy("a", 1)
    assert driver.spawn("b", IN_CELL_0)


def test_a_build_that_fails_holds_nothing() -> None:
    driver = Complaining(script=FaultScript(faults=(FailsToBuild(reason="no", for_s=1),)))

    assert driver.spawn("a", IN_CELL_0) == "no"
    assert not driver.spawn("b", IN_CELL_0, at_s=5.0)
