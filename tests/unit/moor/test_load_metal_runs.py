"""The state changes and deploys of `moor load --bare-metal`."""

from uuid import UUID

import pytest

from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstanceActive,
    InstanceState,
)
from bus.messages.placement import LogPosition, ProvidersChanged
from engine.flavors import instance_id_of
from engine.inventories import InventoryState, ProviderId, ProviderState
from laboratory.ironic import SimulatedIronic, available_nodes
from laboratory.load.firing import Run
from laboratory.load.orders import METAL, ChangeRun, OrderRun, ReservedNodes, plain

NODES = [ProviderId(UUID(each.uuid)) for each in available_nodes(2)]
AT = LogPosition(term=1, position=1)


def provider(node: ProviderId, revision: int, *, reserved: int = 0, used: int = 0) -> ProviderState:
    stock = InventoryState(total=1, reserved=reserved, used=used)
    return ProviderState(
        internal=node.int, id=node, name=str(node), root=node, revision=revision, inventories={"GOLD": stock}
    )


def changed(*providers: ProviderState) -> ProvidersChanged:
    return ProvidersChanged(at=AT, providers=providers)


def known_of(*nodes: ProviderId) -> ReservedNodes:
    return ReservedNodes(nodes, [provider(node, 1) for node in nodes])


def state_of(request: BuildInstance, state: str, host: str = "") -> InstanceState:
    assert request.request_id is not None
    id_ = instance_id_of(request.request_id, 0)
    return InstanceState(id=id_, request_id=request.request_id, sequence=1, state=state, host=host)


def orders_of(run: Run, count: int) -> list[Message]:
    return [each.message for each in run.next_orders(count)]


def test_a_change_has_ended_when_placement_has_the_new_reserved_amount() -> None:
    ironic = SimulatedIronic(available_nodes(2), lambda: 0.0, lambda *_: None)
    run = ChangeRun(known_of(*NODES), ironic, NODES, 3)

    assert orders_of(run, 3) == []
    assert (run.sent, run.ended) == (2, 0), "each node has one change under way"
    assert all(node.maintenance for node in ironic.nodes.values())

    run.hear(changed(provider(NODES[0], 2)))
    assert run.ended == 0, "it is still free"
    run.hear(changed(provider(NODES[0], 1, reserved=1)))
    assert run.ended == 0, "that is older than what is known"
    run.hear(changed(provider(NODES[0], 3, reserved=1)))
    assert (run.ended, len(run.latencies_s)) == (1, 1)

    orders_of(run, 1)
    assert not ironic.nodes[str(NODES[0])].maintenance, "the next change of it goes back"
    run.hear(changed(provider(NODES[0], 4), provider(NODES[1], 2, reserved=1)))
    assert (run.sent, run.ended) == (3, 3)


def test_with_a_rate_changes_are_begun_one_by_one() -> None:
    run = ChangeRun(
        known_of(*NODES),
        SimulatedIronic(available_nodes(2), lambda: 0.0, lambda *_: None),
        NODES,
        2,
        due_s=(0.0, 1000.0),
    )

    orders_of(run, run.room(2))
    orders_of(run, run.room(2))

    assert run.sent == 1


def test_where_only_nodes_get_instances_a_delete_takes_the_instance_of_a_node() -> None:
    run = OrderRun(["metal", "delete"], METAL, mix=plain("metal", "delete"))
    (boot,) = orders_of(run, 2)
    assert isinstance(boot, BuildInstance)
    there = state_of(boot, "active", str(NODES[0]))

    run.hear(InstanceActive(cell="c1", instance=there))

    assert orders_of(run, 0) == [DeleteInstance(instance=there.id)]


def test_a_request_that_is_rejected_ends_the_run() -> None:
    run = OrderRun(["metal"], METAL, mix=plain("metal"))
    (boot,) = orders_of(run, 1)
    assert isinstance(boot, BuildInstance)

    with pytest.raises(RuntimeError, match="was rejected"):
        run.hear(BuildRejected(request_id=boot.request_id, field="flavor", value="x", reason="no"))
