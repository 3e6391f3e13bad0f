"""Values that placement's store takes and gives. store_sql/ has the store."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from bus.messages.books import ConsumerState, WriteVerdict
from bus.messages.placement import ProviderGone
from engine.inventories import (
    ProviderId,
    ProviderState,
    ProviderUsage,
)
from placement_worker.core.ledger import (
    BatchDecision,
    ClaimChanges,
    HolderChanges,
    Ledger,
)

# A decision about administrators' allocations, and the function that decides by the rows that a store reads.
AdminDecision = BatchDecision[WriteVerdict, ClaimChanges]
DecideAllocations = Callable[[Ledger], AdminDecision]


class LoggedChanges(HolderChanges, frozen=True, kw_only=True):
    """What the change log has as it is published: also the providers that are gone."""

    gone: tuple[ProviderGone, ...] = ()


class Unpublished(LoggedChanges, frozen=True, kw_only=True):
    """The changes in the log since a cursor: whole providers, and the usage of those of which nothing else changed.

    `cursor` says how far this reading came, in the store's own format. `is_cut`: the reading stopped at its limit, so
    there may be more.
    """

    cursor: str
    providers: tuple[ProviderState, ...] = ()
    usage: tuple[ProviderUsage, ...] = ()
    is_cut: bool = False


class Holdings(Struct, frozen=True):
    """A consumer, and the generations of the providers that it holds something of, all read at one moment."""

    consumer: ConsumerState
    generations: Mapping[ProviderId, int]
