"""The mend of a fault: one order, which names what the audit saw. If that has changed, the order does nothing."""

from collections.abc import Iterator

from msgspec import structs

from bus.messages.audit import (
    BookEntry,
    CellEntry,
    ExpectedClaim,
    MendConsumer,
    MendedClaim,
    MendInstance,
    RecountBooks,
    SeenConsumer,
)
from bus.messages.build import InstanceState
from bus.messages.cell import DestroyInstance, RemoveFromCell
from engine.inventories import InventoryState, ProviderState, ResourceAmount, Share
from moor.books.views import InstanceView, OnHost, Places

# Is a share from an earlier shape of its host? Then where may its instance hold it now?
#
# A cell's row has the share as it was claimed. A reshape of the host moves what is held to other providers, and no row of a cell
# learns that. So the share names providers that are gone, or have no such inventory any more.


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


RECOUNT = RecountBooks()


def end(consumer: BookEntry) -> MendConsumer:
    """The order to free everything that the consumer holds."""
    return MendConsumer(consumer=consumer.id, seen=_seen(consumer))


def claim(
    view: InstanceView,
    entry: CellEntry,
    expected: ExpectedClaim,
    consumer: BookEntry | None,
    places: Places,
) -> MendConsumer:
    """The order to let the consumer hold what the instance's cell expects it to hold, of the host's present providers."""
    assert expected.share is not None, "only a claim with a share is mended"
    return MendConsumer(
        consumer=expected.consumer,
        seen=_seen(consumer) if consumer else None,
        claim=MendedClaim(
            cell=entry.instance.cell,
            attempt=expected.attempt,
            share=in_present_shape(expected.share, places),
            type=expected.type,
            project=project_of(view, entry),
            user=entry.user,
            group=entry.group,
            has_place=expected.has_place,
        ),
    )


def project_of(view: InstanceView, entry: CellEntry) -> str:
    return view.at_api.project if view.at_api else entry.instance.project


def _seen(consumer: BookEntry) -> SeenConsumer:
    return SeenConsumer(generation=consumer.generation, attempt=consumer.attempt, ended=consumer.ended)


def row(told: InstanceState, of_cell: InstanceState) -> MendInstance:
    """The order to bring the API level's row to the state that the cell has."""
    return MendInstance(seen=told.sequence, instance=of_cell)


def remove(told: InstanceState, cell: str) -> RemoveFromCell | None:
    """The order to let the cell delete the instance: a client was told that it is deleted, or is being deleted.

    None if the API level's row does not say since when that is so.
    """
    if told.changed_at is None:
        return None
    return RemoveFromCell(
        cell=cell,
        instance=told.id,
        request_id=told.request_id,
        sequence=told.sequence,
        issued_at=told.changed_at,
    )


def destroy(view: InstanceView, entry: CellEntry | None, found: OnHost) -> DestroyInstance | None:
    """The order to let a host remove an attempt, as a conductor gives it to a host that answered too late.

    A row must say that the attempt is not wanted: the row of the host's cell, or the API level's row of a deleted
    instance. Otherwise there is no order, since the attempt may be all that is left of the instance.
    """
    is_known = entry is not None and entry.instance.cell == found.cell
    is_deleted = view.at_api is not None and view.at_api.state == "deleted"
    if not (is_known or is_deleted):
        return None
    at = found.entry
    return DestroyInstance(cell=found.cell, instance=at.instance, attempt=at.attempt, host=at.host)
