"""The counter of deploys of tests/adversity: a deploy whose end is not told is counted when the number is read."""

from laboratory.ironic import IronicScript
from laboratory.ironic.script import Loses
from tests.adversity.deploy_counter import DeployCounter
from tests.unit.ironic_sim.test_states import a_world

INSTANCE = "11111111-1111-4111-8111-111111111111"
ENDS_ARE_LOST = IronicScript(faults=(Loses(event_types=("*.end",)),))


def test_a_deploy_whose_end_is_lost_is_counted_before_the_next_notification() -> None:
    world = a_world(ENDS_ARE_LOST, instance_uuid=INSTANCE)
    counter = DeployCounter(world.ironic)

    world.ironic.provision("node-00000", "active")
    counter.look()
    told = len(world.said)
    world.settle()
    # The start of the deploy is told, and its end is not.
    assert world.state("node-00000") == "active"
    assert [each for each in world.event_types()[told:] if each.endswith("provision_set.end")] == []
    assert counter.deployed == 1

    world.ironic.provision("node-00000", "deleted")
    assert counter.deployed == 1
    world.settle()
    assert counter.deployed == 1


def test_each_rebuild_of_a_node_counts_once_more() -> None:
    world = a_world(ENDS_ARE_LOST, instance_uuid=INSTANCE)
    counter = DeployCounter(world.ironic)
    for number, target in enumerate(("active", "rebuild", "rebuild"), 1):
        world.ironic.provision("node-00000", target)
        counter.look()
        world.settle()

        assert counter.deployed == number
