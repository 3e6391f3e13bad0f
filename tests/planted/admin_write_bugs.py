"""Planted bugs in placement's rules for administrators' writes."""

from typing import Any

from msgspec import structs

from bus.messages.administration import Done
from engine.picture.columns import KnownProviders
from placement_worker import admin_writes
from placement_worker.core import allocation_writes, forest, provider_writes
from placement_worker.core.forest import ForestDraft
from placement_worker.core.ledger import ClaimChanges
from placement_worker.view import ProviderReplica
from tests.planted.replacing import ANY_CLOUD, planted, planted_by

# The last write of inventories, traits or aggregates wins, whatever generation its writer had seen.
planted_by("a provider's generation not checked", provider_writes, "moved_generation", world=ANY_CLOUD)(
    lambda _real: lambda _book, _seen: None
)


# The last write of a consumer's allocations wins, whatever generation its writer had seen.
planted_by("a consumer's generation not checked", allocation_writes, "_moved", world=ANY_CLOUD)(
    lambda _real: lambda _draft, _consumers: iter(())
)


# The first of several consumers is refused, but the others are written.
@planted(
    "the second consumer written although the first is refused",
    allocation_writes,
    "allocate",
    world=ANY_CLOUD,
)
def second_consumer_written(real: Any, draft: Any, consumers: Any, *others: Any) -> Any:
    verdict = real(draft, consumers, *others)
    if not isinstance(verdict, Done) and len(consumers) > 1:
        real(draft, consumers[1:], *others)
    return verdict


# Allocations are written without a check of the capacity.
planted_by("allocations written that do not fit", allocation_writes, "shortfalls_of", world=ANY_CLOUD)(
    lambda _real: lambda *_: iter(())
)


# Allocations are written, but not the providers' `used`.
@planted("used not updated by an administrator's write", admin_writes, "decide_allocations", world=ANY_CLOUD)
def used_not_updated(real: Any, ledger: Any, *writes: Any) -> Any:
    decision = real(ledger, *writes)
    touched = tuple(
        structs.replace(each, used=ledger.providers[each.provider.int].used)
        for each in decision.changes.touched
    )
    return structs.replace(decision, changes=structs.replace(decision.changes, touched=touched))


# The inventories move, but their allocations do not.
@planted_by("a reshape without its allocations", admin_writes, "decide_reshape", world=ANY_CLOUD)
def reshape_without_allocations(real: Any) -> Any:
    return lambda *ledger: structs.replace(real(*ledger), claims=ClaimChanges())


# The inventories move, even if the allocations are refused.
@planted(
    "a reshape applied though its allocations are refused", allocation_writes, "allocate", world=ANY_CLOUD
)
def reshape_goes_on_when_refused(real: Any, *draft: Any) -> Any:
    real(*draft)
    return Done()


# A claim committed between the reads of a reshape and its write loses its inventory.
planted_by("an inventory in use removed by a reshape", allocation_writes, "_lost", world=ANY_CLOUD)(
    lambda _real: lambda *_: None
)


# A provider moves to another tree; its descendants are written only if something else of them changed.
@planted("descendants keep their old root", ForestDraft, "_changed_in", world=ANY_CLOUD)
def descendants_keep_their_root(real: Any, self: Any, tree: Any) -> Any:
    stored = {
        id_: book for standing in self.stored.trees.values() for id_, book in standing.providers.items()
    }
    return [
        each
        for each in real(self, tree)
        # The root's row holds its tree's shape.
        if each == tree.root or tree.providers[each] is not stored.get(each)
    ]


# A provider without allocations can be deleted although it has children.
@planted("a provider deleted above its children", provider_writes, "_delete", world=ANY_CLOUD)
def deleted_above_its_children(_real: Any, draft: Any, book: Any) -> Any:
    lost = forest.lost_inventory(book, ())
    if lost is None:
        draft.remove_provider(book.id)
    return lost or Done()


# A provider without children can be deleted although it has allocations.
planted_by("a provider deleted in use", provider_writes, "lost_inventory", world=ANY_CLOUD)(
    lambda _real: lambda *_: None
)


# A write of traits leaves the tree's shape unchanged, so claims that require the old traits pass.
@planted("traits do not change the shape", forest, "is_same_to_claims", world=ANY_CLOUD)
def traits_do_not_change_the_shape(real: Any, one: Any, other: Any) -> Any:
    return real(one, structs.replace(other, traits=one.traits, operator_traits=one.operator_traits))


# The view is told that a provider was deleted, and continues to find it.
@planted("a view keeps deleted providers", KnownProviders, "delete", world=ANY_CLOUD)
def view_keeps_deleted_providers(real: Any, self: KnownProviders, internals: Any) -> None:
    if not isinstance(self, ProviderReplica):
        real(self, internals)


# Two providers may have the same name.
planted_by("duplicate provider names accepted", provider_writes, "_name_taken")(lambda _real: lambda *_: None)


# Those that no seed can show: placement's database refuses a name that another provider has, and the write is tried again.
