"""Who decides what a provider has of a class: its reporter, or whoever wrote it by name.

A provider remembers what its reporter last reported of each class where placement has something else
(`ProviderBook.reported`). That difference is all that is stored, and the rules follow from it:

- A write by name applies at once. From then on the class is *kept*: reports are remembered, and do not change it.
- The class is the reporter's again as soon as both say the same: because the reporter reports what was written, or because
  the write by name restores what was reported (`SetInventories.as_reported`).
- A reshape moves a class to another provider of the tree. While a provider has a class that its reporter does not know,
  no report adds this class to a further provider of the tree: the same capacity would be there twice.

A provider that was created by name has no reporter yet (`reported` is None): all its inventories were written by name.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter

from msgspec import structs

from bus.message import ProviderId
from bus.messages.placement import InventoryState, KeptInventory, ReportedInventory
from placement_worker.core.ledger import ProviderBook

# How many kept inventories an answer to a report names.
NAMED_MAX = 100

# The values of an inventory without its usage, in the order of `ReportedInventory` and of the table's columns.
limit_values = attrgetter(*ReportedInventory.__struct_fields__)

Reported = Mapping[str, ReportedInventory | None]


def last_reported(book: ProviderBook, resource: str) -> ReportedInventory | None:
    """What the reporter last reported of this class; None if it reported none."""
    if book.reported is None:
        return None
    if resource in book.reported:
        return book.reported[resource]
    return limits_of(book.inventories.get(resource))


def written_by_name(book: ProviderBook, inventories: Mapping[str, InventoryState]) -> ProviderBook:
    """The provider with these inventories, written by name."""
    if book.reported is None:
        return structs.replace(book, inventories=inventories)
    words = {name: last_reported(book, name) for name in {**book.inventories, **inventories, **book.reported}}
    return structs.replace(book, inventories=inventories, reported=differing(words, inventories))


def differing(
    words: Reported, inventories: Mapping[str, InventoryState]
) -> dict[str, ReportedInventory | None]:
    """What the reporter says, of the classes where these inventories are something else."""
    return {name: word for name, word in words.items() if word != limits_of(inventories.get(name))}


def limits_of(inventory: InventoryState | None) -> ReportedInventory | None:
    """The inventory without its usage, as reports have it."""
    return None if inventory is None else ReportedInventory(*limit_values(inventory))


def kept_inventories(book: ProviderBook) -> Iterator[KeptInventory]:
    for name, reported in sorted((book.reported or {}).items()):
        yield KeptInventory(
            provider=book.id, resource=name, reported=reported, kept=limits_of(book.inventories.get(name))
        )


def moved_by_name(
    standing: Mapping[ProviderId, ProviderBook], words: Mapping[ProviderId, Reported]
) -> frozenset[str]:
    """The classes that some provider of the tree has only by name, after a report of `words`."""
    return frozenset(
        name
        for book in standing.values()
        # Most providers have nothing that was written by name.
        if book.reported is None or book.reported
        for name in book.inventories
        if (words[book.id].get(name) if book.id in words else last_reported(book, name)) is None
    )
