"""Ironic's database goes back to an older copy: what lives on a node by the books is neither wiped nor sold, and a delete means it."""

from collections.abc import Callable, Sequence

import pytest
from msgspec import structs

from bus.messages.cell import UndeployInstance, UndeployOrdered
from engine.flavors import InstanceId
from ironic_sync.core.deploying import NO_NODE
from ironic_sync.core.ordering import believed_missing
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import answered, with_stray
from ironic_sync.sweeping import Sweeper
from kit.parts import PartState, statuses
from kit.process import Part
from laboratory.ironic import SimulatedNode, available_nodes
from laboratory.ironic.node import second
from tests.stories.metal.test_deploys import IN_MEMORY, QUICK, DeploySetup, deploy_setup, offered
from tests.waiting import until

pytestmark = [IN_MEMORY]

# All nodes are compared again and again.
SWEEPS = structs.replace(QUICK, sweep_s=0.2)


async def active(there: DeploySetup, number: int, **fields: object) -> InstanceId:
    """A new instance, active. Time passes then: Ironic's times are whole seconds."""
    instance = await there.boot(number, **fields)
    await there.cloud.until_state(instance, "active")
    there.end_work()
    return instance


def is_held(row: NodeRow) -> bool:
    return row.deploy is not None and row.deploy.progress == NO_NODE


async def until_held(there: DeploySetup, node: SimulatedNode) -> None:
    await until(lambda: there.row(node), "the delete is held", is_held)


async def until_swept(parts: Sequence[Part], times: int = 3) -> None:
    (sweeper,) = [each for each in parts if isinstance(each, Sweeper)]
    wanted = sweeper.sweeps + times
    await until(lambda: sweeper.sweeps >= wanted, f"{times} sweeps")


async def test_an_instance_stays_where_ironic_says_that_an_ended_one_is(bus: str, books: str) -> None:
    (node,) = available_nodes(1)
    async with offered(bus, books, node, rules=SWEEPS) as (there, parts):
        first = await active(there, 1)
        backup = there.simulation.ironic.copy()
        await there.gone(first, node)
        second = await active(there, 2)

        there.simulation.ironic.restore(backup)
        await until_swept(parts)
        # The order to take the first one off comes once more.
        row = await there.row(node)
        await there.cloud.send(UndeployInstance(cell="c1", instance=first, attempt=1, host=row.id))
        await until_swept(parts)

        (now,) = there.nodes
        assert (now.provision_state, now.instance_uuid) == ("active", str(first)), "nothing was ordered"
        row = await there.row(node)
        assert row.deploy is None
        assert f"instance {second} lives here by the books" in row.discord

        # A person says that it is to end: then both are taken off.
        await there.gone(second, node)
        assert [each.provision_state for each in there.nodes] == ["available"]


async def test_an_instance_that_ironic_has_forgotten_is_not_sold_and_its_delete_has_the_node_cleaned(
    bus: str, books: str
) -> None:
    (node,) = available_nodes(1)
    async with offered(bus, books, node, rules=SWEEPS) as (there, parts):
        backup = there.simulation.ironic.copy()
        there.end_work()
        instance = await active(there, 1)

        there.simulation.ironic.restore(backup)
        await until_swept(parts)
        row = await there.row(node)
        assert row.offer is not None
        assert row.offer.reserved
        assert "Ironic has no instance on the node" in row.discord

        orders = there.simulation.ironic.published
        await there.gone(instance, node)
        assert there.simulation.ironic.published > orders, "the node was cleaned"
        assert (await there.row(node)).deployed is None
        assert not (await there.row(node)).discord


async def with_ended_instances(there: DeploySetup, nodes: Sequence[SimulatedNode]) -> list[InstanceId]:
    """Instances that have ended on these nodes, and that a restored Ironic has there again."""
    ended = [await active(there, number, hosts=(node.uuid,)) for number, node in enumerate(nodes, 1)]
    backup = there.simulation.ironic.copy()
    for each in ended:
        await there.gone(each)
    await there.until_free(*nodes)
    there.simulation.ironic.restore(backup)
    return ended


async def change_rows(there: DeploySetup, change: Callable[[NodeRow], NodeRow]) -> None:
    """As the commands of an operator do it."""
    ids = [each.id for each in await there.rows.owners()]
    async with there.rows.transaction() as transaction:
        rows = await transaction.load(ids)
        await transaction.save([change(row) for row in rows.values()])


@pytest.mark.hits("node %s: %s; nothing is done there without a person's order")
async def test_of_a_restored_ironic_nothing_is_settled_until_a_person_has_answered(
    bus: str, books: str
) -> None:
    nodes = available_nodes(3)
    async with offered(bus, books, *nodes, rules=SWEEPS) as (there, parts):
        ended = await with_ended_instances(there, nodes[:2])
        # One more is gone: it is younger than the backup.
        young = there.simulation.ironic.nodes[nodes[2].uuid]
        there.simulation.ironic.restore([each for each in there.nodes if each is not young])
        await until_swept(parts)

        assert {each.instance_uuid for each in there.nodes} == {str(each) for each in ended}
        rows = [await there.row(node) for node in nodes]
        assert all(row.older_than and row.offer and row.offer.reserved for row in rows[:2])
        assert rows[2].missing_since_us
        assert not rows[2].is_deleted
        (alarm,) = [each for each in statuses(parts) if each.name == "believe what Ironic lists"]
        assert alarm.state is PartState.FAILING

        async with there.cloud.listening("node.#") as heard:
            await change_rows(there, answered)
            await there.until_free(*nodes[:2])
            await until(lambda: heard, "both orders are told", lambda both: len(both) == 2)
        told = {(each.host, each.instance) for each in heard if isinstance(each, UndeployOrdered)}
        assert told == {(row.id, each) for row, each in zip(rows, ended, strict=False)}
        rows = [await there.row(node) for node in nodes[:2]]
        assert [[each.instance for each in row.unasked] for row in rows] == [[each] for each in ended]
        assert all("attempt 1 of it has ended" in each.why for row in rows for each in row.unasked)


@pytest.mark.hits("the undeploy of instance %s from node %s, of which attempt %d has ended, %s")
async def test_daemons_together_take_only_a_few_instances_off_by_themselves(bus: str, books: str) -> None:
    nodes = available_nodes(6)
    few = structs.replace(SWEEPS, undeploys_unasked=2)
    async with (
        deploy_setup(bus, books, *nodes) as there,
        there.daemon("d1", few) as parts,
        there.daemon("d2", few) as others,
    ):
        await there.until_offered(*nodes)
        ended = await with_ended_instances(there, nodes)
        await until_swept(parts)
        await until_swept(others)
        await change_rows(there, answered)

        async def are_settled() -> bool:
            rows = [await there.row(node) for node in nodes]
            held = [row for row in rows if row.deploy is not None and "by themselves" in row.deploy.progress]
            free = [each for each in there.nodes if each.provision_state == "available"]
            return len(held) == 4 and len(free) == 2

        await until(are_settled, "two are taken off, and four are held")
        await until_swept(parts)
        await until_swept(others)
        assert await are_settled()
        left = {each.instance_uuid for each in there.nodes} - {None}
        of_node = {str(each): each for each in ended}
        by_node = {each.uuid: of_node[each.instance_uuid] for each in there.nodes if each.instance_uuid}
        assert len(left) == 4

        # An operator may.
        await change_rows(
            there, lambda row: with_stray(row, by_node[str(row.id)]) if str(row.id) in by_node else row
        )
        await there.until_free(*nodes)


async def test_what_the_node_of_an_active_instance_says_is_told_beside_it(bus: str, books: str) -> None:
    (node,) = available_nodes(1)
    async with offered(bus, books, node, rules=SWEEPS) as (there, parts):
        instance = await active(there, 1)
        before = await there.cloud.until_state(instance, "active")
        assert before.reason == ""
        (as_it_was,) = there.simulation.ironic.copy()

        later = second(there.clock())
        failed = structs.replace(
            as_it_was,
            provision_state="deploy failed",
            last_error="the disk is gone",
            provision_updated_at=later,
        )
        there.simulation.ironic.restore([failed])
        told = await there.until_says(instance, "its node says: deploy failed: the disk is gone")
        assert told.changed_at == before.changed_at
        assert [each.provision_state for each in there.nodes] == ["deploy failed"], "nothing was ordered"
        there.simulation.ironic.restore([structs.replace(as_it_was, provision_updated_at=later)])
        await there.until_says(instance, "")

        there.simulation.ironic.restore(available_nodes(1, provision_updated_at=later))
        await there.until_says(
            instance, f"instance {instance} lives here by the books, and Ironic has no instance on the node"
        )

        # The cell's database is of before the instance: what its node tells then is no reason to take it off.
        async with there.instances.transaction() as transaction:
            await transaction.save([], [instance], [])
        there.simulation.ironic.restore([structs.replace(as_it_was, provision_updated_at=later)])
        await until(
            lambda: there.row(node), "its node has told", lambda row: row.living and row.living.told == ""
        )
        await until_swept(parts)
        assert [each.provision_state for each in there.nodes] == ["active"]
        assert (await there.row(node)).deploy is None


async def deleted_once_a_person_says_that_it_is_gone(
    there: DeploySetup, parts: Sequence[Part], instance: InstanceId, node: SimulatedNode
) -> None:
    await there.delete(instance)
    await until_held(there, node)
    await until_swept(parts)
    assert is_held(await there.row(node))
    await change_rows(there, believed_missing)
    await there.cloud.until_state(instance, "deleted")


async def test_a_delete_on_a_node_younger_than_the_backup_waits_until_a_person_says_that_it_is_gone(
    bus: str, books: str
) -> None:
    old, young = available_nodes(2)
    async with offered(bus, books, old, young, rules=SWEEPS) as (there, parts):
        backup = [each for each in there.simulation.ironic.copy() if each.uuid == old.uuid]
        there.end_work()
        await active(there, 1, hosts=(old.uuid,))
        instance = await active(there, 2, hosts=(young.uuid,))
        there.simulation.ironic.restore(backup)
        await until_swept(parts)
        assert (await there.row(old)).older_than
        assert (await there.row(young)).missing_since_us

        await deleted_once_a_person_says_that_it_is_gone(there, parts, instance, young)


async def test_a_delete_on_the_only_node_that_ironic_has_lost_waits_and_its_instance_says_so(
    bus: str, books: str
) -> None:
    lost, *others = available_nodes(8)
    async with offered(bus, books, lost, *others, rules=SWEEPS) as (there, parts):
        instance = await active(there, 1, hosts=(lost.uuid,))
        there.simulation.ironic.restore([each for each in there.nodes if each.uuid != lost.uuid])
        words = f"instance {instance} lives here by the books, and Ironic has no such node any more"
        await there.until_says(instance, words)
        await until_swept(parts)
        (alarm,) = [each for each in statuses(parts) if each.name == "believe what Ironic lists"]
        assert alarm.state is PartState.FAILING
        assert not (await there.row(lost)).is_deleted

        await deleted_once_a_person_says_that_it_is_gone(there, parts, instance, lost)
