"""Examples of the messages about requests, instances and moves."""

from msgspec import structs

from bus.message import Message
from bus.messages.build import (
    AskInstances,
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    CellHeard,
    ClaimRefused,
    DeleteInstance,
    FlavorChange,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceMoved,
    InstancePlaced,
    InstancesFound,
    InstanceWaiting,
    JoinedGroup,
    PortRequest,
    RebuildInstance,
    VolumeRequest,
    Wait,
    Waiting,
)
from bus.messages.moves import (
    AskHistory,
    AskMoves,
    EndMove,
    HistoryFound,
    MoveInstance,
    MovePlace,
    MovesFound,
)
from tests.unit.examples.values import (
    AGGREGATE,
    CHANGE,
    CLEANUP,
    CONSUMER,
    FLAVOR,
    GROUP,
    IMAGE,
    REQUEST,
    STATE,
    WHEN,
)

REQUESTS: tuple[Message, ...] = (
    BuildInstance(
        request_id=REQUEST,
        flavor=FLAVOR,
        count=2,
        instance_ids=(CONSUMER, CLEANUP),
        name="web",
        project="p",
        user="u",
        image_properties={"hw_architecture": "x86_64"},
        availability_zone="north",
        group=JoinedGroup(id=GROUP, policy="anti-affinity", max_per_host=2),
        hosts=("host-1",),
        ignore_hosts=("host-2",),
        different_host=(CONSUMER,),
        same_host=(CONSUMER,),
        deadline_s=300,
        image=IMAGE,
        config_drive="http://drives/web",
        ports=("port-1",),
        member_of=((AGGREGATE,),),
        forbidden_aggregates=(AGGREGATE,),
        port_requests=(
            PortRequest(
                id="port-2",
                resources={"NET_BW_EGR_KILOBIT_PER_SEC": 1000},
                physical_network="north-1",
                vnic_type="normal",
                required=("CUSTOM_FAST",),
                forbidden=("CUSTOM_OLD",),
            ),
        ),
        volume_requests=(
            VolumeRequest(
                id="volume-1", resources={"DISK_GB": 5}, required=("CUSTOM_FAST",), forbidden=("CUSTOM_OLD",)
            ),
        ),
        all_or_nothing=True,
        wait=Wait(for_s=3600, priority=7),
        alternatives=(structs.replace(FLAVOR, name="smaller", vcpus=1),),
    ),
    BuildRejected(
        request_id=REQUEST, field="flavor.vcpus", value="-1", reason="must not be negative", project="p"
    ),
    BuildAccepted(request_id=REQUEST, instances=(CONSUMER,), project="p"),
    DeleteInstance(instance=CONSUMER),
    RebuildInstance(request_id=REQUEST, instance=CONSUMER, image=IMAGE, project="p", deadline_s=300),
    MoveInstance(
        request_id=REQUEST,
        instance=CONSUMER,
        kind="resize",
        flavor=FLAVOR,
        change=FlavorChange(
            vcpus=4,
            ram_mb=8192,
            root_gb=40,
            ephemeral_gb=0,
            swap_mb=0,
            extra_specs={"trait:HW_CPU_X86_AVX2": None, "resources:VGPU": "1"},
        ),
        hosts=("host-2",),
        project="p",
        deadline_s=300,
        confirm_s=600,
    ),
    EndMove(request_id=REQUEST, instance=CONSUMER, how="revert", project="p"),
    AskHistory(instance=CONSUMER, after=4, limit=50, project="p"),
    HistoryFound(instance=STATE, changes=(CHANGE,), next=4),
    AskMoves(host="host-1", ended=True, after=MovePlace(WHEN, CONSUMER), limit=50),
    MovesFound(moves=(CHANGE,), next=MovePlace(WHEN, CONSUMER)),
    InstanceWaiting(
        cell="cell0",
        instance=structs.replace(STATE, state="waiting", waiting=Waiting(until=WHEN, priority=7)),
    ),
    InstancePlaced(
        cell="c1",
        instance=structs.replace(STATE, refusals=(ClaimRefused(host="host-3", reason="its shape moved"),)),
    ),
    InstanceActive(cell="c1", instance=STATE),
    InstanceMoved(cell="c1", instance=STATE),
    InstanceFailed(cell="c1", instance=STATE),
    InstanceDeleted(cell="c1", instance=STATE),
    AskInstances(instances=(CONSUMER,), request_id=REQUEST, after=CONSUMER, limit=50, state="error"),
    InstancesFound(
        instances=(STATE,),
        next=CONSUMER,
        cells=(CellHeard(cell="c1", life="down", heard_at=WHEN, reason="no conductor"),),
    ),
)
