"""The scheduler's rows in SQL. Nearly all statements are made from one description of a row, for both databases.

The tables must exist: `kit.sql.upgrade(url, "scheduler_worker")` creates them. However large a batch is, it takes the
same number of statements.
"""

from scheduler_worker.store_sql.rows import SqlSchedulerStore, SqlSchedulerTransaction

__all__ = ["SqlSchedulerStore", "SqlSchedulerTransaction"]
