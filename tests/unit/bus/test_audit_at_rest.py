"""Problems of a cloud at rest: each rule has a case."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import InstanceDetails, InstanceState, Size
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import InventoryState, ProviderId, ProviderState
from laboratory.at_rest import Asked, CloudAtRest, NodeEntry, problems_at_rest

HOST, FREE, BUSY = (ProviderId(UUID(int=number)) for number in (10, 1, 2))
WEB, METAL, GONE = (InstanceId(UUID(int=number)) for number in (101, 102, 103))
SMALL = {"VCPU": 2, "MEMORY_MB": 512}
CLASS = "CUSTOM_BAREMETAL"


def row_of(id_: InstanceId, name: str, host: str, state: str = "active") -> InstanceState:
    return InstanceState(
        id=id_, request_id=RequestId(UUID(int=1)), sequence=3, state=state, name=name, host=host, cell="c1"
    )


def details_of(id_: InstanceId, amounts: Mapping[str, int]) -> InstanceDetails:
    return InstanceDetails(id=id_, size=Size(amounts={**amounts}))


def provider_of(id_: ProviderId, name: str, **inventories: InventoryState) -> ProviderState:
    return ProviderState(internal=id_.int, id=id_, name=name, root=id_, inventories=inventories)


def host_with(*, vcpus: int = 2, **fields: int) -> ProviderState:
    stock = structs.replace(InventoryState(total=8, used=vcpus), **fields)
    return provider_of(HOST, "h1", VCPU=stock, MEMORY_MB=InventoryState(total=4096, used=512))


def stock_of(id_: ProviderId, *, reserved: int, used: int, resource: str = CLASS) -> ProviderState:
    return provider_of(id_, str(id_), **{resource: InventoryState(total=1, reserved=reserved, used=used)})


def node_of(id_: ProviderId, instance: InstanceId | None = None, **fields: object) -> NodeEntry:
    entry = NodeEntry(
        id=id_,
        name=f"n{id_.int}",
        provision_state="active" if instance else "available",
        is_available=instance is None,
        resource=CLASS,
        instance=instance,
        owner="ironic-1",
        is_reported=True,
    )
    return structs.replace(entry, **fields)


def hosts_with(instances: int) -> tuple[HostState, ...]:
    return (HostState(id=HOST, name="h1", cell="c1", up=True, instances=instances),)


WELL = CloudAtRest(
    asked={
        WEB: Asked("active", SMALL),
        METAL: Asked("active", {"VCPU": 0, CLASS: 1}, on_node=True),
        GONE: Asked("deleted", SMALL),
    },
    rows={
        WEB: row_of(WEB, "web", "h1"),
        METAL: row_of(METAL, "metal", str(BUSY)),
        GONE: row_of(GONE, "gone", "", "deleted"),
    },
    details={WEB: details_of(WEB, SMALL), METAL: details_of(METAL, {CLASS: 1})},
    hosts=hosts_with(1),
    providers={
        HOST: host_with(),
        FREE: stock_of(FREE, reserved=0, used=0),
        BUSY: stock_of(BUSY, reserved=1, used=1),
    },
    nodes=(node_of(FREE), node_of(BUSY, METAL)),
)


def with_asked(id_: InstanceId, **fields: object) -> dict[str, object]:
    return {"asked": {**WELL.asked, id_: structs.replace(WELL.asked[id_], **fields)}}


def with_row(id_: InstanceId, **fields: object) -> dict[str, object]:
    return {"rows": {**WELL.rows, id_: structs.replace(WELL.rows[id_], **fields)}}


def with_provider(provider: ProviderState) -> dict[str, object]:
    return {"providers": {**WELL.providers, provider.id: provider}}


def test_a_correct_state_has_no_problems() -> None:
    assert [*problems_at_rest(WELL)] == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        pytest.param(
            with_asked(GONE, heard=""),
            f"instance {GONE}: the client heard nothing, the API level has deleted",
            id="heard nothing",
        ),
        pytest.param(
            with_asked(GONE, heard="error"),
            f"instance {GONE}: the client heard error, the API level has deleted",
            id="heard another end",
        ),
        pytest.param(
            {**with_asked(GONE, heard="moving"), **with_row(GONE, state="moving")},
            f"instance {GONE}: the client heard moving, the API level has moving",
            id="no end",
        ),
        pytest.param(
            {"rows": {WEB: WELL.rows[WEB], METAL: WELL.rows[METAL]}},
            f"instance {GONE}: the client heard deleted, the API level has nothing",
            id="no row",
        ),
        pytest.param(
            {"details": {**WELL.details, WEB: details_of(WEB, {"VCPU": 2})}},
            f"instance {WEB}: the client asked for {{'VCPU': 2, 'MEMORY_MB': 512}}, the API level has {{'VCPU': 2}}",
            id="size",
        ),
        pytest.param(
            {"details": {METAL: WELL.details[METAL]}},
            f"instance {WEB}: the client asked for {{'VCPU': 2, 'MEMORY_MB': 512}}, the API level has {{}}",
            id="no size",
        ),
        pytest.param(
            with_provider(host_with(vcpus=3)), "3 VCPU are in use, and the active instances need 2", id="leak"
        ),
        pytest.param(
            with_provider(host_with(vcpus=0)), "0 VCPU are in use, and the active instances need 2", id="less"
        ),
        pytest.param(
            with_provider(host_with(total=1)), "h1: 2 VCPU are in use, and there are 1", id="over capacity"
        ),
        pytest.param(
            with_provider(host_with(reserved=7)), "h1: 2 VCPU are in use, and there are 1", id="over reserve"
        ),
        pytest.param({"hosts": hosts_with(2)}, "h1 has 2 instances, of which 1 are active", id="twice"),
        pytest.param({"hosts": hosts_with(0)}, "h1 has 0 instances, of which 1 are active", id="lost"),
        pytest.param(
            with_asked(WEB, on_node=True), "instance web is on h1, which is a hypervisor", id="hypervisor"
        ),
        pytest.param(
            with_asked(METAL, on_node=False),
            f"instance metal is on {BUSY}, which is a bare-metal node",
            id="bare metal",
        ),
        pytest.param(
            {"nodes": (node_of(FREE), node_of(BUSY, WEB))},
            f"node n2 has instance {WEB} in Ironic, in state 'active', and the API level has {METAL} there",
            id="another instance",
        ),
        pytest.param(
            {"nodes": (node_of(FREE), node_of(BUSY, METAL, provision_state="deploying"))},
            f"node n2 has instance {METAL} in Ironic, in state 'deploying', and the API level has {METAL} there",
            id="not deployed",
        ),
        pytest.param({"dead_letters": 3}, "3 parcels are among the dead letters", id="dead letters"),
        pytest.param(
            {"providers": {HOST: WELL.providers[HOST], BUSY: WELL.providers[BUSY]}},
            "node n1 has no inventory in placement",
            id="no provider",
        ),
        pytest.param(
            with_provider(stock_of(FREE, reserved=0, used=0, resource="CUSTOM_OTHER")),
            "node n1 has no inventory in placement",
            id="no inventory",
        ),
        pytest.param(
            with_provider(stock_of(FREE, reserved=1, used=0)),
            "node n1 is 'available' in Ironic, but placement has 1 of 1 reserved",
            id="not offered",
        ),
        pytest.param(
            {"nodes": (node_of(FREE, is_available=False), WELL.nodes[1])},
            "node n1 is 'available' in Ironic, but placement has 0 of 1 reserved",
            id="wrongly offered",
        ),
        pytest.param(
            {"nodes": (node_of(FREE, owner="", is_reported=False), WELL.nodes[1])},
            "node n1 is owned by no daemon that is alive",
            id="no owner",
        ),
        pytest.param(
            {"nodes": (node_of(FREE, is_reported=False), WELL.nodes[1])},
            "node n1 was not reported by its owner ironic-1",
            id="not reported",
        ),
        pytest.param(
            {"nodes": (node_of(FREE, GONE, is_available=True), WELL.nodes[1])},
            f"node n1 has instance {GONE} in Ironic, in state 'active', and the API level has None there",
            id="deleted instance",
        ),
        pytest.param(
            {"nodes": (WELL.nodes[0], node_of(BUSY, is_available=False))},
            f"node n2 has instance None in Ironic, in state 'available', and the API level has {METAL} there",
            id="no instance",
        ),
    ],
)
def test_each_problem_is_named_and_nothing_else(wrong: dict[str, object], told: str) -> None:
    assert [*problems_at_rest(structs.replace(WELL, **wrong))] == [told]
