"""What is written into the books by name, planted."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from bus.messages.administration import Done
from placement_worker import writing
from placement_worker.core import allocating, equipping, planting, providing, reshaping
from placement_worker.core.ledger import ClaimChanges
from placement_worker.core.planting import ForestDraft
from placement_worker.replica import Replica
from tests.simulation.replacing import replaced


def generation_not_compared() -> AbstractContextManager[None]:
    """Whoever writes inventories, traits or aggregates last is right, whatever it had seen."""
    return replaced(equipping, "moved_generation", lambda _real: lambda _book, _seen: None)


def consumer_generation_not_compared() -> AbstractContextManager[None]:
    """Whoever says last what a consumer holds is right, whatever it had seen."""
    return replaced(allocating, "_moved", lambda _real: lambda _draft, _consumers: iter(()))


def second_consumer_written() -> AbstractContextManager[None]:
    """Of several consumers the first is refused, and the others are written."""

    def by(real: Any) -> Any:
        def allocate(draft: Any, consumers: Any, *others: Any) -> Any:
            verdict = real(draft, consumers, *others)
            if not isinstance(verdict, Done) and len(consumers) > 1:
                real(draft, consumers[1:], *others)
            return verdict

        return allocate

    return replaced(allocating, "allocate", by)


def fit_not_looked_at() -> AbstractContextManager[None]:
    """Who knows the consumer's generation knows what fits, too."""
    return replaced(allocating, "shortfalls_of", lambda _real: lambda *_: iter(()))


def used_left_as_it_was() -> AbstractContextManager[None]:
    """What is held is written, and what is used of each provider is not."""

    def by(real: Any) -> Any:
        def decide(*ledger: Any) -> Any:
            decision = real(*ledger)
            return structs.replace(decision, changes=structs.replace(decision.changes, used=()))

        return decide

    return replaced(writing, "decide_allocations", by)


def reshape_forgets_what_is_held() -> AbstractContextManager[None]:
    """The inventories move, and nothing that is held of them."""

    def by(real: Any) -> Any:
        return lambda *ledger: structs.replace(real(*ledger), claims=ClaimChanges())

    return replaced(writing, "decide_reshape", by)


def reshape_goes_on_when_refused() -> AbstractContextManager[None]:
    """The inventories move, even if what is held of them may not."""

    def by(real: Any) -> Any:
        def allocate(*draft: Any) -> Any:
            real(*draft)
            return Done()

        return allocate

    return replaced(reshaping, "allocate", by)


def held_inventory_reshaped_away() -> AbstractContextManager[None]:
    """Who came between the reading of a reshape and its writing loses what is held."""
    return replaced(reshaping, "_lost", lambda _real: lambda *_: None)


def descendants_keep_their_root() -> AbstractContextManager[None]:
    """A provider goes to another tree, and those below it are only written where something else of them differs."""

    def by(real: Any) -> Any:
        def changed_in(self: Any, tree: Any) -> Any:
            stored = {
                id_: book
                for standing in self._stored.trees.values()
                for id_, book in standing.providers.items()
            }
            return [
                each
                for each in real(self, tree)
                # A root tells its tree's shape.
                if each == tree.root or tree.providers[each] is not stored.get(each)
            ]

        return changed_in

    return replaced(ForestDraft, "_changed_in", by)


def deleted_above_its_children() -> AbstractContextManager[None]:
    """A provider of which nothing is held may go; those below it stay."""

    def by(_real: Any) -> Any:
        def delete(draft: Any, book: Any) -> Any:
            lost = equipping.stock_lost(book, ())
            if lost is None:
                draft.fell(book.id)
            return lost or Done()

        return delete

    return replaced(providing, "_delete", by)


def deleted_in_use() -> AbstractContextManager[None]:
    """A provider without children may go, held or not."""
    return replaced(providing, "stock_lost", lambda _real: lambda *_: None)


def traits_leave_the_shape() -> AbstractContextManager[None]:
    """A tree whose traits were written has the shape that it had, so claims that want others pass."""

    def by(real: Any) -> Any:
        def is_same(one: Any, other: Any) -> Any:
            return real(one, structs.replace(other, traits=one.traits, operator_traits=one.operator_traits))

        return is_same

    return replaced(planting, "is_same_to_claims", by)


def view_keeps_what_is_gone() -> AbstractContextManager[None]:
    """Who answers reads is told that a provider is no more, and goes on finding it."""
    return replaced(Replica, "remove", lambda _real: lambda _self, _gone: None)


def name_not_compared() -> AbstractContextManager[None]:
    """Two providers may have one name."""
    return replaced(providing, "_name_taken", lambda _real: lambda *_: None)
