"""Planted bugs in placement's rules for administrators' writes."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from bus.messages.administration import Done
from engine.picture.columns import KnownProviders
from placement_worker import admin_writes
from placement_worker.core import allocation_writes, forest, provider_writes
from placement_worker.core.forest import ForestDraft
from placement_worker.core.ledger import ClaimChanges
from placement_worker.view import ProviderReplica
from tests.planted.replacing import PlantedBug, replaced


def generation_not_checked() -> AbstractContextManager[None]:
    """The last write of inventories, traits or aggregates wins, whatever generation its writer had seen."""
    return replaced(provider_writes, "moved_generation", lambda _real: lambda _book, _seen: None)


def consumer_generation_not_checked() -> AbstractContextManager[None]:
    """The last write of a consumer's allocations wins, whatever generation its writer had seen."""
    return replaced(allocation_writes, "_moved", lambda _real: lambda _draft, _consumers: iter(()))


def second_consumer_written() -> AbstractContextManager[None]:
    """The first of several consumers is refused, but the others are written."""

    def planted(real: Any) -> Any:
        def allocate(draft: Any, consumers: Any, *others: Any) -> Any:
            verdict = real(draft, consumers, *others)
            if not isinstance(verdict, Done) and len(consumers) > 1:
                real(draft, consumers[1:], *others)
            return verdict

        return allocate

    return replaced(allocation_writes, "allocate", planted)


def fit_not_checked() -> AbstractContextManager[None]:
    """Allocations are written without a check of the capacity."""
    return replaced(allocation_writes, "shortfalls_of", lambda _real: lambda *_: iter(()))


def used_not_updated() -> AbstractContextManager[None]:
    """Allocations are written, but not the providers' `used`."""

    def planted(real: Any) -> Any:
        def decide(ledger: Any, *writes: Any) -> Any:
            decision = real(ledger, *writes)
            touched = tuple(
                structs.replace(each, used=ledger.providers[each.provider.int].used)
                for each in decision.changes.touched
            )
            return structs.replace(decision, changes=structs.replace(decision.changes, touched=touched))

        return decide

    return replaced(admin_writes, "decide_allocations", planted)


def reshape_without_allocations() -> AbstractContextManager[None]:
    """The inventories move, but their allocations do not."""

    def planted(real: Any) -> Any:
        return lambda *ledger: structs.replace(real(*ledger), claims=ClaimChanges())

    return replaced(admin_writes, "decide_reshape", planted)


def reshape_goes_on_when_refused() -> AbstractContextManager[None]:
    """The inventories move, even if the allocations are refused."""

    def planted(real: Any) -> Any:
        def allocate(*draft: Any) -> Any:
            real(*draft)
            return Done()

        return allocate

    return replaced(allocation_writes, "allocate", planted)


def inventory_in_use_reshaped_away() -> AbstractContextManager[None]:
    """A claim committed between the reads of a reshape and its write loses its inventory."""
    return replaced(allocation_writes, "_lost", lambda _real: lambda *_: None)


def descendants_keep_their_root() -> AbstractContextManager[None]:
    """A provider moves to another tree; its descendants are written only if something else of them changed."""

    def planted(real: Any) -> Any:
        def changed_in(self: Any, tree: Any) -> Any:
            stored = {
                id_: book
                for standing in self.stored.trees.values()
                for id_, book in standing.providers.items()
            }
            return [
                each
                for each in real(self, tree)
                # The root's row holds its tree's shape.
                if each == tree.root or tree.providers[each] is not stored.get(each)
            ]

        return changed_in

    return replaced(ForestDraft, "_changed_in", planted)


def deleted_above_its_children() -> AbstractContextManager[None]:
    """A provider without allocations can be deleted although it has children."""

    def planted(_real: Any) -> Any:
        def delete(draft: Any, book: Any) -> Any:
            lost = forest.lost_inventory(book, ())
            if lost is None:
                draft.remove_provider(book.id)
            return lost or Done()

        return delete

    return replaced(provider_writes, "_delete", planted)


def deleted_in_use() -> AbstractContextManager[None]:
    """A provider without children can be deleted although it has allocations."""
    return replaced(provider_writes, "lost_inventory", lambda _real: lambda *_: None)


def traits_do_not_change_the_shape() -> AbstractContextManager[None]:
    """A write of traits leaves the tree's shape unchanged, so claims that require the old traits pass."""

    def planted(real: Any) -> Any:
        def is_same(one: Any, other: Any) -> Any:
            return real(one, structs.replace(other, traits=one.traits, operator_traits=one.operator_traits))

        return is_same

    return replaced(forest, "is_same_to_claims", planted)


def view_keeps_deleted_providers() -> AbstractContextManager[None]:
    """The view is told that a provider was deleted, and continues to find it."""

    def planted(real: Any) -> Any:
        def delete(self: KnownProviders, internals: Any) -> None:
            if not isinstance(self, ProviderReplica):
                real(self, internals)

        return delete

    return replaced(KnownProviders, "delete", planted)


def name_not_checked() -> AbstractContextManager[None]:
    """Two providers may have the same name."""
    return replaced(provider_writes, "_name_taken", lambda _real: lambda *_: None)


# Those that no seed can show: placement's database refuses a name that another provider has, and the write is tried again.
BUGS: dict[str, PlantedBug] = {"duplicate provider names accepted": name_not_checked}
