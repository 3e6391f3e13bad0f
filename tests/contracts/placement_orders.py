"""Example messages for tests of placement. Ids are derived from names, so that a test can write the names."""

from datetime import UTC, datetime, timedelta
from uuid import NAMESPACE_OID, UUID, uuid5

from bus.messages.placement import ClaimResources, Heir, ReleaseClaim, ReportInventory, SwapClaim
from engine.inventories import (
    AggregateId,
    ConsumerId,
    GroupId,
    ProviderId,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
    ServerGroup,
    ShapeSeen,
    Share,
    Vocabulary,
)

NOON = datetime(2024, 5, 17, 12, tzinfo=UTC)
HORIZON = timedelta(hours=1)
LONG_AGO = NOON - timedelta(days=1)
CELL = "c1"
VOCABULARY = Vocabulary(
    classes=frozenset({"VCPU", "MEMORY_MB", "DISK_GB", "VGPU"}),
    traits=frozenset({"HW_CPU_X86_VMX", "STORAGE_DISK_SSD"}),
)


def an_id(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, name)


def provider(name: str) -> ProviderId:
    return ProviderId(an_id(name))


def consumer(name: str) -> ConsumerId:
    return ConsumerId(an_id(name))


def aggregate(name: str) -> AggregateId:
    return AggregateId(an_id(name))


HOST = provider("host-1")
OTHER_HOST = provider("host-2")
WEB = consumer("web")
DB = consumer("db")
CLEANUP = consumer("cleanup of web")
MIGRATION = consumer("migration of web")
GROUP = ServerGroup(id=GroupId(an_id("group")), policy="anti-affinity")


def amounts(of: ProviderId, **by_class: int) -> tuple[ResourceAmount, ...]:
    return tuple(
        ResourceAmount(provider=of, resource=resource, amount=amount) for resource, amount in by_class.items()
    )


def a_share(
    host: ProviderId = HOST,
    asked: tuple[ResourceAmount, ...] = (),
    shapes: dict[ProviderId, int] | None = None,
    instances_max: int = 0,
) -> Share:
    """On a host that has not changed since its first report, unless `shapes` says otherwise. A share that also takes from
    other providers names no shapes.
    """
    is_of_one_tree = all(each.provider == host for each in asked)
    seen = ({host: 1} if is_of_one_tree else {}) if shapes is None else shapes
    return Share(
        host=host,
        amounts=asked or amounts(host, VCPU=1),
        shapes=tuple(ShapeSeen(root=root, shape=shape) for root, shape in seen.items()),
        instances_max=instances_max,
    )


def a_claim(
    share: Share | None = None,
    who: ConsumerId = WEB,
    attempt: int = 1,
    *,
    cell: str = CELL,
    issued_at: datetime = NOON,
    group: ServerGroup | None = None,
) -> ClaimResources:
    return ClaimResources(
        cell=cell,
        consumer=who,
        attempt=attempt,
        issued_at=issued_at,
        share=share or a_share(),
        project="shop",
        user="ann",
        group=group,
    )


def a_swap(
    share: Share,
    who: ConsumerId = WEB,
    held: int = 1,
    attempt: int = 2,
    *,
    cell: str = CELL,
    cleanup: ConsumerId | None = None,
    migration: ConsumerId | None = None,
    returns: ConsumerId | None = None,
    group: ServerGroup | None = None,
) -> SwapClaim:
    """At most one of `cleanup` and `migration` is the heir."""
    heir = Heir(id=cleanup, type="CLEANUP") if cleanup else None
    return SwapClaim(
        cell=cell,
        consumer=who,
        held_attempt=held,
        attempt=attempt,
        issued_at=NOON,
        share=share,
        heir=Heir(id=migration, type="MIGRATION") if migration else heir,
        returns=returns,
        group=group,
    )


def a_release(
    who: ConsumerId = WEB, attempt: int = 1, *, cell: str = CELL, issued_at: datetime = NOON
) -> ReleaseClaim:
    return ReleaseClaim(cell=cell, consumer=who, attempt=attempt, issued_at=issued_at)


def inventories(**totals: int) -> dict[str, ReportedInventory]:
    return {resource: ReportedInventory(total=total) for resource, total in totals.items()}


def a_provider(
    name: str,
    parent: ProviderId | None = None,
    holds: dict[str, ReportedInventory] | None = None,
    traits: tuple[str, ...] | None = None,
    aggregates: tuple[AggregateId, ...] | None = None,
) -> ReportedProvider:
    return ReportedProvider(
        id=provider(name),
        name=name,
        parent=parent,
        inventories=holds,
        traits=traits,
        aggregates=aggregates,
    )


def a_report(
    *providers: ReportedProvider,
    root: ProviderId = HOST,
    removed: tuple[ProviderId, ...] = (),
    cell: str = CELL,
    epoch: int = 0,
    sequence: int = 0,
) -> ReportInventory:
    return ReportInventory(
        cell=cell, root=root, providers=providers, removed=removed, epoch=epoch, sequence=sequence
    )


def a_host(name: str = "host-1", *, cell: str = CELL, **totals: int) -> ReportInventory:
    """A report of a host without children."""
    holds = inventories(**(totals or {"VCPU": 4, "MEMORY_MB": 4096}))
    return a_report(a_provider(name, holds=holds), root=provider(name), cell=cell)
