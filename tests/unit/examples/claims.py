"""Examples of the messages about claims, reports, and the feed of changes."""

from bus.message import Message
from bus.messages.hosts import AskHostShape, HostHolder, HostReshaped, HostShapeFound, ReshapeHost
from bus.messages.placement import (
    AskMembers,
    AskRevisions,
    AskSnapshot,
    ClaimAnswered,
    ClaimResources,
    Heir,
    InventoryRefused,
    LogPosition,
    MembersPage,
    ProviderGone,
    ProvidersChanged,
    ReleaseClaim,
    ReportAccepted,
    ReportAnswered,
    ReportInventory,
    RevisionsPage,
    SnapshotPage,
    SwapClaim,
)
from bus.messages.together import (
    ClaimPlace,
    ClaimsAnswered,
    ClaimTogether,
    NoneClaimed,
    RefusedPlace,
    ShareTemplate,
    TemplateAmount,
)
from engine.inventories import Holder, ProviderUsage, ReportedInventory, ReportedProvider
from engine.refusals import DoesNotFit, HostFull, ShapeMoved, Shortfall
from tests.unit.examples.values import (
    AFFINITY,
    AGGREGATE,
    CLEANUP,
    CONSUMER,
    IN_USE,
    MEMBER,
    MIGRATION,
    NUMA,
    PROVIDER,
    ROOT,
    SHARE,
    WHEN,
)

CLAIMS: tuple[Message, ...] = (
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
        takes_reserved=True,
    ),
    SwapClaim(
        cell="c1",
        consumer=CONSUMER,
        held_attempt=1,
        attempt=2,
        issued_at=WHEN,
        share=SHARE,
        heir=Heir(id=CLEANUP, type="CLEANUP"),
        returns=MIGRATION,
        group=AFFINITY,
        leaves=(ROOT,),
    ),
    ReleaseClaim(cell="c1", consumer=CONSUMER, attempt=2, issued_at=WHEN, project="shop", leaves_group=True),
    ClaimTogether(
        claim=CONSUMER,
        attempt=1,
        issued_at=WHEN,
        templates=(
            ShareTemplate(
                cell="c1",
                amounts=(TemplateAmount(provider=1, resource="VCPU", amount=4),),
                roots=(0,),
                instances_max=50,
            ),
        ),
        places=(ClaimPlace(consumer=CONSUMER, template=0, providers=(ROOT, NUMA), shapes=(3,)),),
        consumer_type="INSTANCE",
        project="shop",
        user="ann",
        group=AFFINITY,
    ),
    ClaimsAnswered(
        claim=CONSUMER,
        verdict=NoneClaimed(
            refused=(RefusedPlace(consumer=CONSUMER, verdict=ShapeMoved(roots=(ROOT,), gone=(NUMA,))),),
            count=3,
        ),
    ),
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
                joins=(AGGREGATE,),
                place="dc1/hall2",
            ),
        ),
        removed=(ROOT,),
        epoch=2,
        sequence=9,
        whole=True,
    ),
    AskHostShape(cell="c1", root=ROOT, after=CONSUMER),
    HostShapeFound(
        root=ROOT,
        providers=(PROVIDER,),
        holders=(HostHolder(consumer=CONSUMER, generation=4, amounts=SHARE.amounts),),
        next=CONSUMER,
    ),
    ReshapeHost(
        cell="c1",
        root=ROOT,
        shape=7,
        providers=(
            ReportedProvider(
                id=NUMA, name="host-17_NUMA0", parent=ROOT, inventories={"VCPU": ReportedInventory(total=16)}
            ),
        ),
        sequence=9,
        moved=(HostHolder(consumer=CONSUMER, generation=4, amounts=SHARE.amounts),),
    ),
    HostReshaped(root=ROOT, verdict=ReportAccepted(shape=8, shape_moved=True)),
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
)
