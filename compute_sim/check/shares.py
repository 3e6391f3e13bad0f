"""Pure: the share of a host that an order for a flavor names, as a scheduler would choose it from the reported inventories."""

from collections.abc import Iterable

from bus.message import ProviderId
from bus.messages.build import Flavor
from bus.messages.placement import ReportedInventory, ReportInventory, ResourceAmount, Share

# Each amount of a flavor is taken from the first of these classes that the host has.
CLASSES = (("vcpus", ("VCPU", "PCPU")), ("ram_mb", ("MEMORY_MB",)), ("root_gb", ("DISK_GB",)))


def share_for(flavor: Flavor, report: ReportInventory) -> Share | None:
    """None if the host has reported nothing of which the flavor takes something."""
    amounts = tuple(
        found
        for field, classes in CLASSES
        if (wanted := getattr(flavor, field)) > 0
        and (found := _first(_inventories(report), classes, wanted)) is not None
    )
    return Share(host=report.root, amounts=amounts) if amounts else None


def impossible_share(share: Share) -> Share:
    """As much of each class as no host has."""
    return Share(
        host=share.host,
        amounts=tuple(
            ResourceAmount(provider=each.provider, resource=each.resource, amount=2**31 - 1)
            for each in share.amounts
        ),
    )


def _inventories(report: ReportInventory) -> list[tuple[ProviderId, str, ReportedInventory]]:
    return [
        (provider.id, resource, inventory)
        for provider in report.providers
        for resource, inventory in (provider.inventories or {}).items()
    ]


def _first(
    inventories: Iterable[tuple[ProviderId, str, ReportedInventory]], classes: tuple[str, ...], wanted: int
) -> ResourceAmount | None:
    for provider, resource, inventory in inventories:
        step = inventory.step_size
        amount = max(-(-wanted // step) * step, inventory.min_unit)
        if resource in classes and amount <= inventory.total - inventory.reserved:
            return ResourceAmount(provider=provider, resource=resource, amount=amount)
    return None
