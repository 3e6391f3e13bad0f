"""One example of every message, with every field set: what the golden files hold."""

from datetime import UTC, datetime
from uuid import UUID

from bus.message import AggregateId, ConsumerId, GroupId, Message, ProviderId
from bus.messages.placement import (
    AskSnapshot,
    ClaimAnswered,
    ClaimResources,
    DoesNotFit,
    Holder,
    InventoryInUse,
    InventoryRefused,
    InventoryState,
    LogPosition,
    ProviderGone,
    ProvidersChanged,
    ProviderState,
    ReleaseClaim,
    ReportAccepted,
    ReportAnswered,
    ReportedInventory,
    ReportedProvider,
    ReportInventory,
    ResourceAmount,
    ServerGroup,
    ShapeSeen,
    Share,
    Shortfall,
    SnapshotPage,
    SwapClaim,
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
)
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

EXAMPLES: tuple[Message, ...] = (
    ClaimResources(
        cell="c1",
        consumer=CONSUMER,
        attempt=1,
        issued_at=WHEN,
        share=SHARE,
        consumer_type="migration",
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
            shortfalls=(Shortfall(provider=NUMA, resource="VCPU", asked=4, free=2, rule="max_unit", bound=3),)
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
    AskSnapshot(after=12, limit=100),
    SnapshotPage(providers=(PROVIDER,), published=LogPosition(term=1, position=40), next=12),
    ProvidersChanged(
        at=LogPosition(term=1, position=41),
        providers=(PROVIDER,),
        gone=(ProviderGone(internal=11, id=ROOT, revision=5),),
        claimed=(Holder(consumer=CONSUMER, attempt=1),),
        ended=(Holder(consumer=CLEANUP, attempt=1),),
    ),
)
