"""One example of every message, with every field set: the golden files hold these."""

from datetime import UTC, datetime
from uuid import UUID

from msgspec import structs

from bus.message import AggregateId, ConsumerId, GroupId, Message, ProviderId
from bus.messages.administration import (
    AskConsumer,
    AskHolders,
    AskNames,
    AskUsages,
    ConsumerAllocations,
    ConsumerFound,
    ConsumerState,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    DropInventory,
    GenerationMoved,
    HoldersFound,
    NamesFound,
    ProviderInventories,
    PutInventory,
    RenameClass,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetTraits,
    TypeUsage,
    UpdateProvider,
    UsagesFound,
    WriteAnswered,
)
from bus.messages.aggregates import (
    Aggregate,
    AggregateChanged,
    AggregateDeleted,
    AggregateSet,
    AggregatesFound,
    AggregateState,
    AskAggregates,
    DeleteAggregate,
    SetAggregate,
)
from bus.messages.applications import (
    ApplicationSet,
    ApplicationsFound,
    AskApplications,
    KnownApplication,
    SetApplication,
)
from bus.messages.build import (
    AskInstances,
    AttemptFailed,
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    ClaimRefused,
    DeleteInstance,
    Flavor,
    FunnelStep,
    Image,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstancePlaced,
    InstancesFound,
    InstanceState,
    JoinedGroup,
    Miss,
    NoValidHost,
    PortRequest,
    Rebuild,
    RebuildInstance,
    RequestId,
    VolumeRequest,
)
from bus.messages.candidates import (
    AskCandidates,
    AskMoreCandidates,
    Candidate,
    Candidates,
    CandidatesFound,
    NextPage,
    RequestGroup,
)
from bus.messages.cell import (
    Choice,
    DeployInstance,
    DeployProgressed,
    DestroyInstance,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    PlaceInCell,
    RebuildInCell,
    RedeployInstance,
    RemoveFromCell,
    SpawnFailed,
    SpawnInstance,
    UndeployInstance,
)
from bus.messages.groups import (
    AskGroups,
    CreateGroup,
    DeleteGroup,
    GroupsFound,
    GroupState,
    PlacedMember,
)
from bus.messages.hosts import (
    AskHosts,
    HostFacts,
    HostMetrics,
    HostsAlive,
    HostSet,
    HostsFound,
    HostsMeasured,
    HostsReported,
    HostState,
    SetHost,
    Supported,
)
from bus.messages.placement import (
    AskMembers,
    AskRevisions,
    AskSnapshot,
    ClaimAnswered,
    ClaimResources,
    DoesNotFit,
    GroupMember,
    Holder,
    HostFull,
    InventoryInUse,
    InventoryRefused,
    InventoryState,
    LogPosition,
    MembersPage,
    ProviderGone,
    ProvidersChanged,
    ProviderState,
    ProviderUsage,
    ReleaseClaim,
    ReportAccepted,
    ReportAnswered,
    ReportedInventory,
    ReportedProvider,
    ReportInventory,
    ResourceAmount,
    RevisionsPage,
    ServerGroup,
    ShapeSeen,
    Share,
    Shortfall,
    SnapshotPage,
    SwapClaim,
)
from bus.messages.planning import (
    AskCapabilities,
    AskDrain,
    AskExplanation,
    AskPlan,
    AskReasons,
    CapabilitiesFound,
    Capability,
    DrainedInstance,
    DrainFound,
    ExhaustedPool,
    Explanation,
    ExplanationsFound,
    HostHaving,
    HostVerdict,
    PlanFound,
    PlannedCell,
    ReasonsFound,
    Relaxation,
)

ROOT = ProviderId(UUID("00000000-0000-4000-8000-000000000001"))
NUMA = ProviderId(UUID("00000000-0000-4000-8000-000000000002"))
CONSUMER = ConsumerId(UUID("00000000-0000-4000-8000-00000000000a"))
CLEANUP = ConsumerId(UUID("00000000-0000-4000-8000-00000000000b"))
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
AFFINITY = ServerGroup(id=GROUP, policy="anti-affinity", max_per_host=2)
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
REBUILD = Rebuild(request_id=REQUEST, number=4, image=IMAGE, ends_by=WHEN, failure="deploy failed: no disk")
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
)
X86 = Supported(architecture="x86_64", hypervisor_type="qemu", vm_mode="hvm")
HOST = HostState(
    id=ROOT,
    name="host-1",
    cell="c1",
    up=True,
    enabled=False,
    disabled_reason="a disk is being replaced",
    instances=3,
    io_ops=1,
    availability_zone="north",
    hypervisor_type="QEMU",
    hypervisor_version=8002000,
    supports=(X86,),
    capabilities={"cpu_info:arch": "x86_64"},
    failed_builds=2,
    heard_at=WHEN,
    sequence=4,
    report_epoch=2,
    report_sequence=9,
    kind="ironic",
    projects=("p", "q"),
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
    name="web",
    project="p",
    size=1,
    members=(PlacedMember(consumer=CONSUMER, host="host-1"),),
)
SHOP = KnownApplication(name="shop", projects=("p",), admin=True)
EXAMPLES: tuple[Message, ...] = (
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
    ),
    BuildRejected(
        request_id=REQUEST, field="flavor.vcpus", value="-1", reason="must not be negative", project="p"
    ),
    BuildAccepted(request_id=REQUEST, instances=(CONSUMER,), project="p"),
    DeleteInstance(instance=CONSUMER),
    RebuildInstance(request_id=REQUEST, instance=CONSUMER, image=IMAGE, project="p", deadline_s=300),
    InstancePlaced(
        cell="c1",
        instance=structs.replace(STATE, refusals=(ClaimRefused(host="host-3", reason="its shape moved"),)),
    ),
    InstanceActive(cell="c1", instance=STATE),
    InstanceFailed(cell="c1", instance=STATE),
    InstanceDeleted(cell="c1", instance=STATE),
    AskInstances(instances=(CONSUMER,), request_id=REQUEST, after=CONSUMER, limit=50, state="error"),
    InstancesFound(instances=(STATE,), next=CONSUMER),
    PlaceInCell(
        cell="c1",
        instance=CONSUMER,
        request_id=REQUEST,
        sequence=2,
        attempt=1,
        issued_at=WHEN,
        ends_by=WHEN,
        flavor=FLAVOR,
        chosen=CHOICE,
        alternates=(CHOICE,),
        name="web-1",
        project="p",
        user="u",
        image_properties={"hw_architecture": "x86_64"},
        group=AFFINITY,
        image=IMAGE,
        config_drive="http://drives/web",
        ports=("port-1",),
    ),
    RemoveFromCell(cell="c1", instance=CONSUMER, request_id=REQUEST, sequence=3, issued_at=WHEN),
    RebuildInCell(cell="c1", instance=CONSUMER, rebuild=REBUILD),
    SpawnInstance(
        cell="c1", instance=CONSUMER, attempt=2, host=ROOT, flavor=FLAVOR, share=SHARE, name="web-1"
    ),
    DestroyInstance(cell="c1", instance=CONSUMER, attempt=2, host=ROOT),
    DeployInstance(
        cell="c1",
        instance=CONSUMER,
        attempt=2,
        host=ROOT,
        flavor=FLAVOR,
        share=SHARE,
        name="web-1",
        project="p",
        user="u",
        image_properties={"trait:CUSTOM_GOLD": "required"},
        image=IMAGE,
        config_drive="http://drives/web",
        ports=("port-1",),
    ),
    UndeployInstance(cell="c1", instance=CONSUMER, attempt=2, host=ROOT),
    RedeployInstance(
        cell="c1",
        instance=CONSUMER,
        attempt=2,
        host=ROOT,
        number=103,
        flavor=FLAVOR,
        image=IMAGE,
        name="web-1",
        image_properties={"trait:CUSTOM_GOLD": "required"},
        config_drive="http://drives/web",
    ),
    DeployProgressed(cell="c1", instance=CONSUMER, attempt=2, host=ROOT, words="wait call-back"),
    InstanceSpawned(cell="c1", instance=CONSUMER, attempt=2, host=ROOT, kind="ironic"),
    SpawnFailed(cell="c1", instance=CONSUMER, attempt=2, host=ROOT, reason="no disk"),
    InstanceDestroyed(cell="c1", instance=CONSUMER, attempt=2, host=ROOT),
    InstanceRedeployed(
        cell="c1",
        instance=CONSUMER,
        attempt=2,
        host=ROOT,
        number=103,
        failure="deploy failed: no disk",
        is_active=False,
    ),
    HostsReported(
        cell="c1",
        hosts=(
            HostFacts(
                id=ROOT,
                name="host-1",
                instances=3,
                io_ops=1,
                availability_zone="north",
                hypervisor_type="QEMU",
                hypervisor_version=8002000,
                supports=(X86,),
                capabilities={"cpu_info:arch": "x86_64"},
                failed_builds=2,
                kind="ironic",
                projects=("p", "q"),
                epoch=2,
                sequence=10,
            ),
        ),
        epoch=2,
        sequence=9,
    ),
    HostsAlive(cell="c1", hosts=(ROOT,)),
    HostsMeasured(cell="c1", hosts=(HostMetrics(id=ROOT, values={"temperature": 41.5}),), sequence=9),
    SetHost(host="host-1", enabled=False, reason="a disk is being replaced"),
    HostSet(host=HOST),
    AskPlan(request=BuildInstance(flavor=FLAVOR, project="shop"), project="shop"),
    PLAN,
    AskReasons(request=BuildInstance(flavor=FLAVOR), step="capacity", after="host-1", limit=10),
    ReasonsFound(
        hosts=(
            HostVerdict(host="host-2", cell="c1", fit=3),
            HostVerdict(host="host-3", cell="c1", step="capacity", reason="VCPU asked 2, free 1 of 8"),
        ),
        next="host-3",
    ),
    AskDrain(host="host-1"),
    DrainFound(
        host="host-1",
        fit=1,
        instances=(
            DrainedInstance(id=CONSUMER, name="web-1", project="shop", to="host-2", cell="c1"),
            DrainedInstance(id=CONSUMER, reason="no host among 3"),
        ),
        more=True,
    ),
    AskExplanation(
        request_id=REQUEST, instance=CONSUMER, project="shop", plan_now=True, after=CONSUMER, limit=10
    ),
    ExplanationsFound(
        explanations=(
            Explanation(
                state=STATE, chosen_at=WHEN, hosts=3, qualified=2, chosen="host-2", alternates=("host-1",)
            ),
        ),
        plan=PLAN,
        next=CONSUMER,
    ),
    AskCapabilities(having="VCPU", value="8", after="host-1", limit=10),
    CapabilitiesFound(
        capabilities=(Capability(name="VCPU", kind="class", value="8", hosts=4, values=2),),
        hosts=(HostHaving(host="host-2", cell="c1", value="8", free=3),),
        next="host-2",
    ),
    AskHosts(name="host-1", after="host-0", limit=10),
    HostsFound(hosts=(HOST,), next="host-1"),
    CreateGroup(id=GROUP, policy="anti-affinity", max_per_host=2, name="web", project="p"),
    DeleteGroup(id=GROUP, project="p"),
    AskGroups(id=GROUP, after=GROUP, limit=50, project="p"),
    GroupsFound(groups=(WEB_GROUP,), next=GROUP),
    SetApplication(name="shop", projects=("p", "q"), admin=True, removed=True),
    ApplicationSet(application=SHOP),
    AskApplications(),
    ApplicationsFound(applications=(SHOP,)),
    SetAggregate(
        aggregate=AGGREGATE,
        name="rack-1",
        metadata={"availability_zone": "north", "rack": None},
        add_hosts=("host-1",),
        remove_hosts=("host-2",),
    ),
    AggregateSet(aggregate=RACK_WITH_HOSTS),
    DeleteAggregate(aggregate=AGGREGATE),
    AggregateDeleted(aggregate=AGGREGATE, was_there=True),
    AskAggregates(name="rack-1", after="host-0", limit=10),
    AggregatesFound(aggregates=(RACK_WITH_HOSTS,), next="host-2"),
    AggregateChanged(aggregate=RACK, deleted=True),
    ClaimResources(
        cell="c1",
        consumer=CONSUMER,
        attempt=1,
        issued_at=WHEN,
        share=SHARE,
        consumer_type="MIGRATION",
        project="p",
        user="u",
        group=AFFINITY,
    ),
    SwapClaim(
        cell="c1",
        consumer=CONSUMER,
        held_attempt=1,
        attempt=2,
        issued_at=WHEN,
        share=SHARE,
        cleanup=CLEANUP,
        group=AFFINITY,
    ),
    ReleaseClaim(cell="c1", consumer=CONSUMER, attempt=2, issued_at=WHEN),
    ClaimAnswered(
        consumer=CONSUMER,
        attempt=1,
        verdict=DoesNotFit(
            shortfalls=(
                Shortfall(provider=NUMA, resource="VCPU", asked=4, free=2, rule="max_unit", bound=3),
            ),
            full=HostFull(host=ROOT, instances=50, instances_max=50),
        ),
    ),
    ReportInventory(
        cell="c1",
        root=ROOT,
        providers=(
            ReportedProvider(
                id=NUMA,
                name="host-1_NUMA0",
                parent=ROOT,
                inventories={
                    "VCPU": ReportedInventory(
                        total=16, reserved=1, min_unit=2, max_unit=8, step_size=2, allocation_ratio=1.5
                    )
                },
                traits=("HW_NUMA_ROOT",),
                aggregates=(AGGREGATE,),
            ),
        ),
        removed=(ROOT,),
        epoch=2,
        sequence=9,
    ),
    ReportAnswered(root=ROOT, verdict=ReportAccepted(shape=8, shape_moved=True)),
    InventoryRefused(cell="c1", root=ROOT, verdict=IN_USE),
    AskSnapshot(after=12, limit=100, since="750:761:752,758"),
    SnapshotPage(
        providers=(PROVIDER,),
        published=LogPosition(term=1, position=40),
        next=12,
        since="750:761:752,758",
        cursor="758:764:",
        gone=(ProviderGone(internal=11, id=ROOT, revision=5),),
        joined=(MEMBER,),
        left=(Holder(consumer=CLEANUP, attempt=1),),
    ),
    AskMembers(after=12, limit=100),
    MembersPage(members=(MEMBER,), next=14),
    AskRevisions(after=12, limit=100),
    RevisionsPage(internals=(13, 14), revisions=(1, 77), next=14),
    ProvidersChanged(
        at=LogPosition(term=1, position=41),
        providers=(PROVIDER,),
        gone=(ProviderGone(internal=11, id=ROOT, revision=5),),
        usage=(
            ProviderUsage(
                internal=14, id=ROOT, base=9, revision=12, generation=4, used={"VCPU": 6}, consumers=3
            ),
        ),
        claimed=(Holder(consumer=CONSUMER, attempt=1),),
        ended=(Holder(consumer=CLEANUP, attempt=1),),
        cursor="758:764:",
        joined=(MEMBER,),
        left=(Holder(consumer=CLEANUP, attempt=1),),
    ),
    CreateProvider(id=NUMA, name="host-1_NUMA0", parent=ROOT, of_cell="c1"),
    UpdateProvider(id=NUMA, name="host-1_NUMA1", parent=None, reparents=False),
    DeleteProvider(id=NUMA),
    SetInventories(provider=NUMA, generation=4, inventories={"VCPU": STOCK}),
    PutInventory(provider=NUMA, generation=None, resource="VCPU", inventory=STOCK, is_new=True),
    DropInventory(provider=NUMA, resource="VCPU"),
    SetTraits(provider=NUMA, generation=4, traits=("HW_NUMA_ROOT",)),
    SetAggregates(provider=NUMA, generation=None, aggregates=(AGGREGATE,), moves_generation=False),
    CreateTrait(name="CUSTOM_GOLD"),
    DeleteTrait(name="CUSTOM_GOLD"),
    CreateClass(name="CUSTOM_GOLD"),
    RenameClass(name="CUSTOM_GOLD", to="CUSTOM_IRON"),
    DeleteClass(name="CUSTOM_IRON"),
    SetAllocations(consumers=(ALLOCATED,)),
    DeleteAllocations(consumer=CONSUMER),
    Reshape(
        inventories=(ProviderInventories(provider=NUMA, generation=4, inventories={"VCPU": STOCK}),),
        allocations=(ALLOCATED,),
    ),
    WriteAnswered(verdict=GenerationMoved(provider=NUMA, seen=3, current=4)),
    AskConsumer(consumer=CONSUMER),
    ConsumerFound(consumer=HOLDS),
    AskHolders(provider=NUMA, after=CLEANUP, limit=100),
    HoldersFound(holders=(HOLDS,), next=CONSUMER),
    AskUsages(project="shop", user="ann"),
    UsagesFound(usages=(TypeUsage(type="INSTANCE", consumers=3, used={"VCPU": 12}),)),
    AskNames(of="traits", after="CUSTOM_A", limit=100),
    NamesFound(names=("CUSTOM_GOLD",), next="CUSTOM_GOLD"),
    AskCandidates(
        groups=(
            RequestGroup(
                resources={"VCPU": 2},
                required=(("HW_CPU_X86_AVX2", "HW_CPU_X86_AVX512F"),),
                preferred={"STORAGE_DISK_SSD": 2.5},
            ),
            RequestGroup(
                suffix="_PORT", resources={"SRIOV_NET_VF": 1}, forbidden=("CUSTOM_SLOW",), in_tree=ROOT
            ),
        ),
        group_policy="isolate",
        same_subtree=(("_PORT",),),
        root_required=("COMPUTE_NODE",),
        limit=50,
    ),
    AskMoreCandidates(answer=REQUEST, page=1),
    CandidatesFound(
        verdict=Candidates(
            candidates=(Candidate(share=SHARE, mappings={"": (ROOT,), "_PORT": (NUMA,)}, preference=2.5),),
            next=NextPage(answer=REQUEST, page=2),
        )
    ),
)
