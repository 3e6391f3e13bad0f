from itertools import pairwise
from typing import Annotated

from msgspec import Meta, Struct

from kit.settings import Count, Seconds, Section, require

# RabbitMQ cancels a consumer that holds a delivery for longer than this.
CONSUMER_TIMEOUT_S = 1800.0


class DatabaseSettings(Struct, frozen=True):
    """The limits of all waits for a database server.

    When a limit is reached, the work is tried again later: the server or the network may have failed silently, or
    another session may hold a lock for ever.
    """

    connect_s: Annotated[
        Seconds,
        Meta(
            description="How long opening a session may take: connect, log in, first statements. A session that is as silent when a transaction "
            "begins or rolls back is discarded. Longer tolerates a slow network; shorter notices a dead server sooner."
        ),
    ] = 10.0
    pool_wait_s: Annotated[
        Seconds,
        Meta(
            description="How long work waits for a free session of the pool; on SQLite, for other writers of this process. Longer survives "
            "bursts; shorter fails, and is tried again, sooner."
        ),
    ] = 30.0
    lock_s: Annotated[
        Seconds,
        Meta(
            description="How long a statement waits for a lock that another session holds. Longer waits out slow transactions; shorter gives "
            "other work a chance sooner."
        ),
    ] = 10.0
    statement_s: Annotated[
        Seconds,
        Meta(
            description="How long one statement may run on the server. Longer allows slow queries; shorter ends runaway ones sooner."
        ),
    ] = 60.0
    idle_in_transaction_s: Annotated[
        Seconds,
        Meta(
            description="How long a transaction may be without a statement before the server ends it. Shorter frees the locks of a hanging "
            "worker sooner; too short cuts a busy one."
        ),
    ] = 60.0
    transaction_s: Annotated[
        Seconds,
        Meta(
            description="How long a transaction may take in all before the worker cuts the connection, whatever the server does. Longer allows "
            "slow servers; shorter frees the worker sooner."
        ),
    ] = 120.0
    long_s: Annotated[
        Seconds,
        Meta(
            description="The limit of statements and transactions of long work: migrations, audits, pruning. It must be longer than the longest "
            "migration takes."
        ),
    ] = 3600.0
    keepalive_idle_s: Annotated[
        Count,
        Meta(
            description="After how many silent seconds the server asks whether a worker still lives. Shorter releases a dead worker's locks "
            "sooner, for some more packets."
        ),
    ] = 30
    keepalive_every_s: Annotated[
        Count,
        Meta(
            description="The seconds between two such questions. Shorter notices a dead worker sooner; longer tolerates short breaks of the "
            "network."
        ),
    ] = 10
    keepalive_tries: Annotated[
        Count,
        Meta(
            description="How many such questions may stay unanswered before the session ends. More tolerates worse networks; fewer releases "
            "locks sooner."
        ),
    ] = 3
    busy_s: Annotated[
        Seconds,
        Meta(
            description="SQLite: how long a process waits for another process that writes to the same file. Longer survives slow disks; shorter "
            "fails, and is tried again, sooner."
        ),
    ] = 5.0

    def __post_init__(self) -> None:
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


DATABASE = Section(
    "db",
    DatabaseSettings,
    "every worker with a database, and `moor db`: the limits of each wait",
    others=("url",),
)


def milliseconds(seconds: float) -> str:
    """The time in milliseconds, as text for PostgreSQL. At least 1, since PostgreSQL takes 0 as no limit."""
    return str(max(1, round(seconds * 1000)))
