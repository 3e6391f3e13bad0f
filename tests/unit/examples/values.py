"""The values that several examples share."""

from datetime import UTC, datetime
from uuid import UUID

from bus.messages.books import (
    ConsumerAllocations,
    ConsumerState,
)
from bus.messages.build import AttemptFailed, InstanceState, Move, Rebuild, Size
from bus.messages.hosts import AggregateState
from bus.messages.moves import (
    Change,
)
from bus.messages.placement import InventoryInUse
from bus.messages.planning import PlanFound
from bus.messages.projects import GroupState, KnownApplication, PlacedMember
from engine.flavors import Flavor, FlavorPassedOver, Image, RequestId
from engine.hosts import Aggregate, HostSetting, HostState, Supported
from engine.inventories import (
    AggregateId,
    Choice,
    ConsumerId,
    GroupId,
    GroupMember,
    InventoryState,
    PlaceRule,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ResourceAmount,
    ServerGroup,
    ShapeSeen,
    Share,
)
from engine.refusals import (
    ExhaustedPool,
    FunnelStep,
    Miss,
    NoValidHost,
    OverLimit,
    PlannedCell,
    PlannedFlavor,
    QuotaRoom,
    Relaxation,
)

ROOT = ProviderId(UUID("00000000-0000-4000-8000-000000000001"))

NUMA = ProviderId(UUID("00000000-0000-4000-8000-000000000002"))

CONSUMER = ConsumerId(UUID("00000000-0000-4000-8000-00000000000a"))

CLEANUP = ConsumerId(UUID("00000000-0000-4000-8000-00000000000b"))

OTHER = ConsumerId(UUID("00000000-0000-4000-8000-00000000000f"))

MIGRATION = ConsumerId(UUID("00000000-0000-4000-8000-00000000000e"))

GROUP = GroupId(UUID("00000000-0000-4000-8000-00000000000c"))

AGGREGATE = AggregateId(UUID("00000000-0000-4000-8000-00000000000d"))

WHEN = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)

SHARE = Share(
    host=ROOT,
    amounts=(
        ResourceAmount(provider=ROOT, resource="DISK_GB", amount=20),
        ResourceAmount(provider=NUMA, resource="VCPU", amount=4),
    ),
    shapes=(ShapeSeen(root=ROOT, shape=7),),
    instances_max=50,
)

MEMBER = GroupMember(group=GROUP, consumer=CONSUMER, attempt=2, host=ROOT)

RULE = PlaceRule(level=4, policy="anti-affinity", max_members=2)

AFFINITY = ServerGroup(id=GROUP, policy="anti-affinity", max_per_host=2, rules=(RULE,))

INVENTORY = InventoryState(
    total=16, reserved=1, min_unit=2, max_unit=8, step_size=2, allocation_ratio=1.5, used=4
)

PROVIDER = ProviderState(
    internal=12,
    id=NUMA,
    name="host-1_NUMA0",
    root=ROOT,
    parent=ROOT,
    cell="c1",
    generation=3,
    shape=7,
    revision=21,
    inventories={"VCPU": INVENTORY},
    traits=("HW_NUMA_ROOT",),
    aggregates=(AGGREGATE,),
    place="dc1/hall2",
)

IN_USE = InventoryInUse(provider=NUMA, resource="VCPU", used=4)

REQUEST = RequestId(UUID("00000000-0000-4000-8000-00000000000e"))

FLAVOR = Flavor(
    name="m1.small",
    vcpus=2,
    ram_mb=4096,
    root_gb=20,
    ephemeral_gb=10,
    swap_mb=512,
    extra_specs={"trait:HW_CPU_X86_AVX2": "required"},
)

CHOICE = Choice(name="host-1", share=SHARE, fingerprint="8d2f6f0a4c1b9e37", kind="ironic")

IMAGE = Image(
    source="http://images/debian",
    checksum="0a1b",
    kernel="http://images/vmlinuz",
    ramdisk="http://images/initrd",
)

REBUILD = Rebuild(
    request_id=REQUEST,
    number=4,
    image=IMAGE,
    ends_by=WHEN,
    failure="deploy failed: no disk",
    image_name="debian",
    image_properties={"hw_architecture": "aarch64"},
)

MOVE = Move(
    request_id=REQUEST,
    number=4,
    kind="resize",
    source="host-1",
    ends_by=WHEN,
    confirm_s=600,
    flavor=FLAVOR,
    destination="host-2",
    confirm_by=WHEN,
    asked="revert",
    outcome="reverted",
    failure="host-2: no disk",
    together=(CONSUMER, OTHER),
    leaves=(ROOT,),
)

CHANGE = Change(
    instance=CONSUMER,
    number=4,
    what="resize",
    cell="c1",
    asked_at=WHEN,
    by="moor-app-shop",
    request_id=REQUEST,
    source="host-1",
    destination="host-2",
    ended_at=WHEN,
    ended_by="moor-operator",
    outcome="reverted",
    failure="host-2: no disk",
    size=Size(flavor="large", amounts={"VCPU": 4, "MEMORY_MB": 8192}),
)

NO_VALID_HOST = NoValidHost(
    hosts=3,
    steps=(FunnelStep(step="capacity", removed=3, example="host-3: VCPU asked 2, free 1"),),
    nearest=(Miss(host="host-3", reason="VCPU asked 2, free 1"),),
)

PLAN = PlanFound(
    qualify=1,
    fit=3,
    is_cut=True,
    cells=(PlannedCell(cell="c1", hosts=1, fit=3),),
    funnel=NO_VALID_HOST,
    relaxations=(Relaxation(change="without trait HW_CPU_X86_AVX2", hosts=2),),
    pools=(ExhaustedPool(pool="nas-1", resource="DISK_GB", asked=20, free=-1, capacity=100, hosts=2),),
    quota=QuotaRoom(fit=1, limits=(OverLimit(name="VCPU", limit=8, used=5, asked=2),)),
    flavor="large",
    alternatives=(
        PlannedFlavor(
            flavor="small",
            qualify=1,
            fit=5,
            is_cut=True,
            cells=(PlannedCell(cell="c1", hosts=1, fit=5),),
            funnel=NO_VALID_HOST,
            relaxations=(Relaxation(change="without trait HW_CPU_X86_AVX2", hosts=2),),
            pools=(
                ExhaustedPool(pool="nas-1", resource="DISK_GB", asked=10, free=-1, capacity=100, hosts=2),
            ),
            quota=QuotaRoom(fit=0, limits=()),
        ),
    ),
)

STATE = InstanceState(
    id=CONSUMER,
    request_id=REQUEST,
    sequence=5,
    state="error",
    cell="c1",
    host="host-1",
    attempt=2,
    name="web-1",
    project="p",
    failures=(AttemptFailed(attempt=1, host="host-2", reason="no disk"),),
    no_valid_host=NO_VALID_HOST,
    reason="no host is left",
    changed_at=WHEN,
    rebuild=REBUILD,
    move=MOVE,
    flavor=FLAVOR,
    passed_over=(FlavorPassedOver(flavor="metal", reason="no valid host", no_valid_host=NO_VALID_HOST),),
)

X86 = Supported(architecture="x86_64", hypervisor_type="qemu", vm_mode="hvm")

HOST = HostState(
    id=ROOT,
    name="host-1",
    cell="c1",
    up=True,
    setting=HostSetting(
        mode="draining", reason="a disk is being replaced", by="moor-operator", at=WHEN, number=3
    ),
    told=2,
    must_clean=True,
    instances=3,
    io_ops=1,
    availability_zone="north",
    hypervisor_type="QEMU",
    hypervisor_version=8002000,
    supports=(X86,),
    capabilities={"cpu_info:arch": "x86_64"},
    failed_builds=2,
    report_refused="consumer c1 holds VCPU 3 of host-1: of 3 VCPU the new shape has room for 2",
    heard_at=WHEN,
    silent_since=WHEN,
    sequence=4,
    report_epoch=2,
    report_sequence=9,
    kind="ironic",
    projects=("p", "q"),
    place="dc1/hall2/row7/rack3",
)

STOCK = ReportedInventory(total=16, reserved=1, min_unit=2, max_unit=8, step_size=2, allocation_ratio=1.5)

ALLOCATED = ConsumerAllocations(
    consumer=CONSUMER,
    amounts=(ResourceAmount(provider=NUMA, resource="VCPU", amount=4),),
    project="shop",
    user="ann",
    generation=1,
    type="INSTANCE",
    judges_generation=False,
)

HOLDS = ConsumerState(
    id=CONSUMER,
    project="shop",
    user="ann",
    type="INSTANCE",
    generation=2,
    attempt=1,
    held=(ResourceAmount(provider=NUMA, resource="VCPU", amount=4),),
)

RACK = Aggregate(id=AGGREGATE, name="rack-1", metadata={"availability_zone": "north"}, sequence=5)

RACK_WITH_HOSTS = AggregateState(
    id=AGGREGATE,
    name="rack-1",
    metadata={"availability_zone": "north"},
    sequence=5,
    hosts_count=2,
    hosts=("host-1", "host-2"),
)

WEB_GROUP = GroupState(
    id=GROUP,
    policy="anti-affinity",
    max_per_host=2,
    rules=(RULE,),
    name="web",
    project="p",
    size=1,
    members=(PlacedMember(consumer=CONSUMER, host="host-1"),),
)

SHOP = KnownApplication(name="shop", projects=("p",), admin=True)
