"""Providers as the one connection that writes to a SQLite file knows them, without reading them again.

Most claims of a batch go to providers that a batch shortly before was about, and reading these cost a quarter of a claim.
What was read or written stands until somebody else writes. SQLite counts that, and keeps its own pages by the same rule:
`data_version` moves with every commit of another connection, `total_changes` with every row that this one writes, even if
it is rolled back afterwards.
"""

import sqlite3

from msgspec import Struct

from bus.messages.placement import InventoryState
from placement_worker.core.ledger import ClaimChanges, ProviderRow

# Providers of some 1 kB each; whoever has more reads some of them again.
PROVIDERS_MAX = 50_000


class Moment(Struct, frozen=True):
    """The file between two writes."""

    written_by_others: int
    written_by_us: int


def moment_of(driver: sqlite3.Connection) -> Moment:
    (others,) = driver.execute("PRAGMA data_version").fetchone()
    return Moment(written_by_others=others, written_by_us=driver.total_changes)


class KnownProviders:
    """By the integers of their ids: internal id, and row."""

    def __init__(self) -> None:
        self._moment: Moment | None = None
        self._rows: dict[int, tuple[int, ProviderRow]] = {}

    def at(self, moment: Moment) -> dict[int, tuple[int, ProviderRow]]:
        """Those known at this moment; whoever reads others adds them."""
        if moment != self._moment or len(self._rows) > PROVIDERS_MAX:
            self._moment, self._rows = moment, {}
        return self._rows

    def committed(self, changes: ClaimChanges, moment: Moment) -> None:
        """Only these changes lie between the moment before and this one."""
        rows = self._rows
        used: dict[int, dict[str, int]] = {}
        for provider, resource, amount in changes.used:
            used.setdefault(provider.int, {})[resource] = amount
        for provider, generation in changes.generations:
            number, row = rows[provider.int]
            inventories = dict(row.inventories)
            for resource, amount in used.get(provider.int, {}).items():
                inventories[resource] = _with_used(inventories[resource], amount)
            rows[provider.int] = (
                number,
                ProviderRow(row.id, row.root, row.cell, generation, row.shape, inventories),
            )
        self._moment = moment


def _with_used(stock: InventoryState, used: int) -> InventoryState:
    return InventoryState(
        total=stock.total,
        reserved=stock.reserved,
        min_unit=stock.min_unit,
        max_unit=stock.max_unit,
        step_size=stock.step_size,
        allocation_ratio=stock.allocation_ratio,
        used=used,
    )
