"""Is a share from an earlier shape of its host? Then where may its instance hold it now?

A cell's row has the share as it was claimed. A reshape of the host moves what is held to other providers, and no row of a cell
learns that. So the share names providers that are gone, or have no such inventory any more.
"""

from collections.abc import Iterator

from msgspec import structs

from bus.auditing.views import Places
from bus.messages.placement import InventoryState, ProviderState, ResourceAmount, Share


def is_of_old_shape(share: Share, places: Places) -> bool:
    return not all(_is_there(each, places) for each in share.amounts)


def in_present_shape(share: Share, places: Places) -> Share:
    """The share from providers that there are. Its tree's providers with most room give what others gave before.

    What finds no room stays where it was claimed: placement refuses it then, and says why.
    """
    amounts: list[ResourceAmount] = []
    for each in share.amounts:
        amounts += [each] if _is_there(each, places) else _found(each, share, places)
    return structs.replace(share, amounts=tuple(amounts))


def _is_there(amount: ResourceAmount, places: Places) -> bool:
    provider = places.providers.get(amount.provider)
    return provider is not None and amount.resource in provider.inventories


def _found(amount: ResourceAmount, share: Share, places: Places) -> Iterator[ResourceAmount]:
    left = amount.amount
    having = [
        (each, each.inventories[amount.resource])
        for each in places.providers.values()
        if each.root == share.host and amount.resource in each.inventories
    ]
    for provider, inventory in sorted(having, key=_by_room):
        part = min(left, _free(inventory))
        if part > 0:
            left -= part
            yield structs.replace(amount, provider=provider.id, amount=part)
    if left:
        yield structs.replace(amount, amount=left)


def _by_room(having: tuple[ProviderState, InventoryState]) -> tuple[int, str]:
    provider, inventory = having
    return -_free(inventory), provider.name


def _free(inventory: InventoryState) -> int:
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio) - inventory.used
