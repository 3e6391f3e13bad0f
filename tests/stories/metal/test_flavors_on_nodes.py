"""A request for "gold, else silver, else a VM" with a simulated Ironic, a real conductor, and a hypervisor in the same cell."""

from bus.workers.connections import Station
from laboratory.ironic import IronicScript, available_nodes
from laboratory.ironic.script import WorkFails
from tests.contracts.stage import SETTINGS
from tests.stories.layouts import STAGES
from tests.stories.metal.test_deploys import IMAGE, deploy_setup
from tests.stories.scheduling.test_alternatives import VM, gold_silver_vm
from tests.stories.scripted import ScriptedComputes
from tests.waiting import until


@STAGES
async def test_when_no_node_can_be_deployed_the_cell_goes_on_with_the_next_flavors(
    bus: str, books: str
) -> None:
    golden = available_nodes(2, resource_class="gold", name="gold")
    nodes = (*golden, *available_nodes(1, resource_class="silver", name="silver"))
    broken = IronicScript(faults=(WorkFails(work="deploy", reason="no such image"),))
    async with deploy_setup(bus, books, *nodes, script=broken) as metal:
        setup, hypervisors = metal.cloud, ScriptedComputes()
        station = Station(setup.brokers.in_cell("c1", "compute"), "hypervisors", settings=SETTINGS)
        async with setup.running((*hypervisors.workers(station), station), station), metal.daemon("d1"):
            await setup.add_host("h1")
            await setup.until_reported("h1", *(node.uuid for node in nodes))
            await until(
                setup.providers,
                "the nodes are offered",
                lambda known: all(known[node.uuid].inventories for node in nodes),
            )
            await setup.until_current()

            (state,) = await setup.built(gold_silver_vm(1, image=IMAGE, deadline_s=None))

            assert (state.host, state.flavor) == ("h1", VM)
            assert len(state.failures) == 3
            assert [(each.flavor, each.reason) for each in state.passed_over] == [
                ("gold", "no host could build it"),
                ("silver", "no host could build it"),
            ]
            of_host = (await setup.providers())["h1"].inventories
            held = {resource: each.used for resource, each in of_host.items() if each.used}
            assert held == {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1}
            spawned = [(each.instance, each.flavor, each.image) for each in hypervisors.spawns]
            assert spawned == [(state.id, VM, IMAGE)] * len(spawned)
