"""Requests for "gold, else silver, else a VM", with a simulated Ironic, a real conductor, and a hypervisor in the same cell."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bus.messages.build import BuildAccepted, BuildInstance, InstanceState
from bus.workers.station import Station
from engine.flavors import Flavor, Image
from laboratory.ironic import IronicScript, SimulatedNode, available_nodes
from laboratory.ironic.script import WorkFails
from tests.contracts.stage import SETTINGS
from tests.stories.cloud import a_build, instance_of
from tests.stories.layouts import STAGES
from tests.stories.metal.test_deploys import DeploySetup, deploy_setup
from tests.stories.scripted import ScriptedComputes
from tests.waiting import until

pytestmark = pytest.mark.asyncio

ON_GOLD = Flavor(name="gold", extra_specs={"resources:CUSTOM_GOLD": "1"})
ON_SILVER = Flavor(name="silver", extra_specs={"resources:CUSTOM_SILVER": "1"})
VM = Flavor(name="vm", vcpus=2, ram_mb=1024, root_gb=1)
IMAGE = Image(source="http://images/debian", checksum="0a1b")


def some_nodes() -> tuple[SimulatedNode, ...]:
    return (
        *available_nodes(2, resource_class="gold", name="gold"),
        *available_nodes(1, resource_class="silver", name="silver"),
    )


@asynccontextmanager
async def a_mixed_cell(
    bus: str, books: str, script: IronicScript | None = None
) -> AsyncIterator[tuple[DeploySetup, ScriptedComputes]]:
    nodes = some_nodes()
    async with deploy_setup(bus, books, *nodes, script=script) as metal:
        setup = metal.cloud
        station = Station(setup.brokers.in_cell("c1", "compute"), "hypervisors", settings=SETTINGS)
        hypervisors = ScriptedComputes()
        async with setup.running((*hypervisors.workers(station), station), station), metal.daemon("d1"):
            await setup.add_host("h1")
            await setup.until_reported("h1", *(node.uuid for node in nodes))
            await until(
                setup.providers,
                "the nodes are offered",
                lambda known: all(known[node.uuid].inventories for node in nodes),
            )
            await setup.until_current()
            yield metal, hypervisors


def gold_silver_vm(number: int, **fields: object) -> BuildInstance:
    return a_build(
        number, flavor=ON_GOLD, alternatives=(ON_SILVER, VM), image=IMAGE, deadline_s=None, **fields
    )


async def check_share(metal: DeploySetup, state: InstanceState) -> None:
    """The instance holds what its flavor asks for on its host, and nothing else."""
    assert state.flavor is not None
    held = {
        name: {resource: each.used for resource, each in provider.inventories.items() if each.used}
        for name, provider in (await metal.cloud.providers()).items()
    }
    assert (
        held[state.host]
        == {
            "gold": {"CUSTOM_GOLD": 1},
            "silver": {"CUSTOM_SILVER": 1},
            "vm": {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1},
        }[state.flavor.name]
    )


@STAGES
async def test_gold_runs_out_then_silver_then_hypervisors_serve(bus: str, books: str) -> None:
    async with a_mixed_cell(bus, books) as (metal, hypervisors):
        build = gold_silver_vm(1, count=4)
        assert isinstance(await metal.cloud.client.ask(build), BuildAccepted)

        states = await metal.cloud.until_all(build, "active")

        by_flavor = sorted((each.flavor.name if each.flavor else "", each.host) for each in states)
        golden, silver = [node.uuid for node in metal.nodes[:2]], metal.nodes[2].uuid
        assert by_flavor == [*(("gold", host) for host in sorted(golden)), ("silver", silver), ("vm", "h1")]
        for state in states:
            await check_share(metal, state)
        (spawn, *_) = hypervisors.spawns
        assert {(each.instance, each.attempt) for each in hypervisors.spawns} == {
            (spawn.instance, spawn.attempt)
        }
        assert (spawn.flavor, spawn.image) == (VM, IMAGE)
        for node in metal.nodes:
            assert node.instance_info["image_source"] == IMAGE.source


@STAGES
async def test_when_no_node_can_be_deployed_the_cell_goes_on_with_the_next_flavors(
    bus: str, books: str
) -> None:
    broken = IronicScript(faults=(WorkFails(work="deploy", reason="no such image"),))
    async with a_mixed_cell(bus, books, broken) as (metal, hypervisors):
        build = gold_silver_vm(1)
        assert isinstance(await metal.cloud.client.ask(build), BuildAccepted)

        state = await metal.cloud.until_state(instance_of(build), "active")

        assert (state.host, state.flavor) == ("h1", VM)
        assert len(state.failures) == 3
        assert [(each.flavor, each.reason) for each in state.passed_over] == [
            ("gold", "no host could build it"),
            ("silver", "no host could build it"),
        ]
        await check_share(metal, state)
        assert all((each.instance, each.flavor) == (state.id, VM) for each in hypervisors.spawns)
