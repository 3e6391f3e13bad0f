from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from kit.settings import Seconds, Section, require

# RabbitMQ cancels a consumer that holds a delivery for longer than this.
CONSUMER_TIMEOUT_S = 1800.0


class DatabaseSettings(Struct, frozen=True):
    """The limits of all waits for a database server.

    When a limit is reached, the work is tried again later: the server or the network may have failed silently, or
    another session may hold a lock for ever. No operator need change the constants; tests do, in a subclass.
    """

    # How long opening a session may take, with the first statements: a slow network's time. A session that is as silent when a
    # transaction begins or rolls back is discarded.
    CONNECT_S: ClassVar[float] = 10.0
    # The limit of statements and transactions of long work: migrations, audits, pruning.
    LONG_S: ClassVar[float] = 3600.0
    # How long work waits for a free session of the pool; on SQLite, for other writers of this process. It outlasts bursts.
    POOL_WAIT_S: ClassVar[float] = 30.0
    # How long a statement waits for a lock that another session holds: other work gets its turn, and this is tried again.
    LOCK_S: ClassVar[float] = 10.0
    # How long a transaction may be without a statement before the server ends it: a worker hangs, and holds locks.
    IDLE_IN_TRANSACTION_S: ClassVar[float] = 60.0
    # A silent worker is asked whether it lives, and its locks are released after a minute.
    KEEPALIVE_IDLE_S: ClassVar[int] = 30
    KEEPALIVE_EVERY_S: ClassVar[int] = 10
    KEEPALIVE_TRIES: ClassVar[int] = 3
    # SQLite: how long a process waits for another one that writes to the same file, and if its work is long (a migration).
    BUSY_S: ClassVar[float] = 5.0
    BUSY_LONG_S: ClassVar[float] = 60.0

    statement_s: Annotated[
        Seconds,
        Meta(
            description="How long one statement may run on the server. Longer allows slow queries; shorter ends runaway ones sooner."
        ),
    ] = 60.0
    transaction_s: Annotated[
        Seconds,
        Meta(
            description="How long a transaction may take in all before the worker cuts the connection, whatever the server does. Longer allows "
            "slow servers; shorter frees the worker sooner."
        ),
    ] = 120.0

    def __post_init__(self) -> None:
        require(self.statement_s <= self.transaction_s, "statement_s must be at most transaction_s")
        held_s = self.POOL_WAIT_S + 2 * self.CONNECT_S + self.transaction_s
        require(
            held_s < CONSUMER_TIMEOUT_S,
            f"{self.POOL_WAIT_S:.0f}, twice {self.CONNECT_S:.0f} and transaction_s make {held_s:.0f}: must be less than the {CONSUMER_TIMEOUT_S:.0f} s"
            " for which a consumer may hold a delivery",
        )

    @property
    def of_sessions(self) -> dict[str, str]:
        """The settings of a new PostgreSQL session. Over a Unix socket PostgreSQL ignores the TCP keepalives."""
        silent_s = self.KEEPALIVE_IDLE_S + self.KEEPALIVE_EVERY_S * self.KEEPALIVE_TRIES
        return {
            "lock_timeout": milliseconds(min(self.LOCK_S, self.statement_s)),
            "statement_timeout": milliseconds(self.statement_s),
            "idle_in_transaction_session_timeout": milliseconds(
                min(self.IDLE_IN_TRANSACTION_S, self.transaction_s)
            ),
            "tcp_keepalives_idle": str(self.KEEPALIVE_IDLE_S),
            "tcp_keepalives_interval": str(self.KEEPALIVE_EVERY_S),
            "tcp_keepalives_count": str(self.KEEPALIVE_TRIES),
            "tcp_user_timeout": milliseconds(silent_s),
        }


DATABASE = Section(
    "db",
    DatabaseSettings,
    "every worker with a database, and `moor db`: the limits of each wait",
    others=("url",),
)


def milliseconds(seconds: float) -> str:
    """The time in milliseconds, as text for PostgreSQL. At least 1, since PostgreSQL takes 0 as no limit."""
    return str(max(1, round(seconds * 1000)))
