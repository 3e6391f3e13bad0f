"""Limits on the time that a worker waits for a database. Relations between the limits are checked here."""

from itertools import pairwise

from msgspec import Struct

from bus.configuration.settings import require, require_positive
from bus.configuration.tuning import Section

# RabbitMQ cancels a consumer that holds a delivery for longer than this.
CONSUMER_TIMEOUT_S = 1800.0


class DatabaseSettings(Struct, frozen=True):
    """The limits of all waits for a database server.

    When a limit is reached, the work is tried again later: the server or the network may have failed silently, or
    another session may hold a lock for ever.
    """

    # Opening a session: connect, log in, first statements. A session that does not answer for as long when a
    # transaction begins or rolls back is discarded.
    connect_s: float = 10.0
    # Waiting for a free session of the pool; on SQLite, for the other writers of this process.
    pool_wait_s: float = 30.0
    # The server's own limits: for a lock that another session holds, for one statement, and for a transaction
    # that sends no statement.
    lock_s: float = 10.0
    statement_s: float = 60.0
    idle_in_transaction_s: float = 60.0
    # The worker's limit for a whole transaction, whatever the server does. Then it cuts the connection.
    transaction_s: float = 120.0
    # For work that takes long: migrations, audits, pruning. It replaces the limits on statements and transactions.
    long_s: float = 3600.0
    # How soon the server notices that a worker is gone, and releases its locks.
    keepalive_idle_s: int = 30
    keepalive_every_s: int = 10
    keepalive_tries: int = 3
    # SQLite: how long a process waits for another process that writes to the same file.
    busy_s: float = 5.0

    def __post_init__(self) -> None:
        require_positive(self, self.__struct_fields__)
        order = ("lock_s", "statement_s", "transaction_s", "long_s")
        for less, more in pairwise(order):
            require(getattr(self, less) <= getattr(self, more), f"{less} must be at most {more}")
        require(
            self.idle_in_transaction_s <= self.transaction_s,
            "idle_in_transaction_s must be at most transaction_s",
        )
        held_s = self.pool_wait_s + 2 * self.connect_s + self.transaction_s
        require(
            held_s < CONSUMER_TIMEOUT_S,
            f"pool_wait_s, twice connect_s and transaction_s make {held_s:.0f}: must be less than the {CONSUMER_TIMEOUT_S:.0f} s"
            " for which a consumer may hold a delivery",
        )

    @property
    def of_sessions(self) -> dict[str, str]:
        """The settings of a new PostgreSQL session. Over a Unix socket PostgreSQL ignores the TCP keepalives."""
        silent_s = self.keepalive_idle_s + self.keepalive_every_s * self.keepalive_tries
        return {
            "lock_timeout": milliseconds(self.lock_s),
            "statement_timeout": milliseconds(self.statement_s),
            "idle_in_transaction_session_timeout": milliseconds(self.idle_in_transaction_s),
            "tcp_keepalives_idle": str(self.keepalive_idle_s),
            "tcp_keepalives_interval": str(self.keepalive_every_s),
            "tcp_keepalives_count": str(self.keepalive_tries),
            "tcp_user_timeout": milliseconds(silent_s),
        }


SECTION = Section("db", DatabaseSettings, others=("url",))


def milliseconds(seconds: float) -> str:
    """The time in milliseconds, as text for PostgreSQL. At least 1, since PostgreSQL takes 0 as no limit."""
    return str(max(1, round(seconds * 1000)))
