"""The workers' own stores on SQLite in memory, empty, for tests that need no server and no file."""

from collections.abc import Callable
from datetime import datetime

from cell_conductor.store_sql import ConductorStore
from ironic_sync.store_sql import IronicStore
from keeper.store_sql import KeeperStore
from kit.clock import now
from placement_worker.store_sql import PlacementStore
from scheduler_worker.store_sql import SchedulerStore
from tests.sqlite_memory import MemoryDatabase, Tables

# 1970 is this day of SQLite.
_EPOCH_DAY = 2_440_587.5
_DAY_S = 86_400


class MemoryPlacementStore(PlacementStore):
    def __init__(self) -> None:
        self.tables = Tables("placement_worker")
        super().__init__(MemoryDatabase(self.tables))


class MemorySchedulerStore(SchedulerStore):
    def __init__(self) -> None:
        super().__init__(MemoryDatabase(Tables("scheduler_worker")))


class MemoryConductorStore(ConductorStore):
    """Conductors of one cell share the tables."""

    def __init__(
        self, clock: Callable[[], datetime] = now, cell: str = "c1", tables: Tables | None = None
    ) -> None:
        self.database = MemoryDatabase(tables or Tables("cell_conductor"))
        super().__init__(self.database, cell, clock=clock)


class MemoryIronicStore(IronicStore):
    """`clock` is that of the database, by which leases end."""

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self.tables = Tables("ironic_sync")
        self.tables.driver.create_function(
            "julianday", 1, lambda _: _EPOCH_DAY + clock().timestamp() / _DAY_S
        )
        super().__init__(MemoryDatabase(self.tables))


class MemoryKeeperStore(KeeperStore):
    def __init__(self) -> None:
        super().__init__(MemoryDatabase(Tables("keeper")))
