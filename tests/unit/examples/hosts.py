"""Examples of the messages about hosts, plans, cells, groups, applications and aggregates."""

from bus.message import Message
from bus.messages.aggregates import (
    AggregateChanged,
    AggregateDeleted,
    AggregateSet,
    AggregatesFound,
    AskAggregates,
    DeleteAggregate,
    SetAggregate,
)
from bus.messages.applications import (
    ApplicationSet,
    ApplicationsFound,
    AskApplications,
    SetApplication,
)
from bus.messages.build import (
    BuildInstance,
)
from bus.messages.cells import (
    AskCells,
    AskLive,
    CellsFound,
    CellState,
    ConductorAlive,
    ConductorHeard,
    LiveFound,
    LiveTold,
    TellLive,
)
from bus.messages.groups import (
    AskGroups,
    CreateGroup,
    DeleteGroup,
    GroupsFound,
)
from bus.messages.host_modes import CheckHost, HeldAttempt, HostCleaned, HostHolds, SetHostInCell
from bus.messages.hosts import (
    AskHosts,
    HostChanged,
    HostFacts,
    HostImages,
    HostMetrics,
    HostsAlive,
    HostSet,
    HostsFound,
    HostsMeasured,
    HostsReported,
    ImagesCached,
    SetHost,
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
    Explanation,
    ExplanationsFound,
    HostHaving,
    HostVerdict,
    ReasonsFound,
)
from tests.unit.examples.values import (
    AGGREGATE,
    CONSUMER,
    FLAVOR,
    GROUP,
    HOST,
    PLAN,
    RACK,
    RACK_WITH_HOSTS,
    REQUEST,
    ROOT,
    SHOP,
    STATE,
    WEB_GROUP,
    WHEN,
    X86,
)

HOSTS: tuple[Message, ...] = (
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
    ImagesCached(cell="c1", hosts=(HostImages(id=ROOT, images=("debian-12",)),), sequence=9),
    SetHost(host="host-1", mode="draining", reason="a disk is being replaced"),
    HostSet(host=HOST),
    HostChanged(cell="c1", host=HOST),
    SetHostInCell(cell="c1", host=ROOT, name="host-1", setting=HOST.setting, must_clean=True),
    CheckHost(cell="c1", host=ROOT, number=3, after=CONSUMER),
    HostHolds(
        cell="c1",
        host=ROOT,
        number=3,
        attempts=(HeldAttempt(instance=CONSUMER, attempt=2),),
        after=CONSUMER,
        next=CONSUMER,
    ),
    HostCleaned(cell="c1", host=ROOT, number=3),
    AskPlan(request=BuildInstance(flavor=FLAVOR, project="shop"), project="shop"),
    PLAN,
    AskReasons(request=BuildInstance(flavor=FLAVOR), step="capacity", after="host-1", limit=10),
    ReasonsFound(
        hosts=(
            HostVerdict(host="host-2", cell="c1", fit=3, flavor="small"),
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
    ConductorAlive(cell="c1", conductor="conductor-1", trouble="its database"),
    AskCells(name="c1"),
    CellsFound(
        cells=(
            CellState(
                cell="c1",
                life="down",
                heard_at=WHEN,
                reason="no conductor",
                conductors=(
                    ConductorHeard(name="conductor-1", life="down", heard_at=WHEN, trouble="its database"),
                ),
                hosts=3,
                hosts_up=2,
                instances=5,
                waiting=1,
            ),
        ),
    ),
    AskLive(in_cell="c1", instances=(CONSUMER,), after=CONSUMER, limit=10, project="shop"),
    TellLive(
        cell="c1",
        question="scheduler-1-7",
        asked_at=WHEN,
        instances=(CONSUMER,),
        after=CONSUMER,
        limit=10,
        project="shop",
    ),
    LiveTold(cell="c1", question="scheduler-1-7", instances=(STATE,), next=CONSUMER),
    LiveFound(cell="c1", instances=(STATE,), next=CONSUMER, silent="no conductor has answered"),
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
)
