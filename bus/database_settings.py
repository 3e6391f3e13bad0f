"""How long a database may keep us waiting. Relations between the limits are asserted here."""

from itertools import pairwise

from msgspec import Struct

from bus.tuning import Section

# RabbitMQ takes a delivery away from a consumer that holds it for longer than this.
CONSUMER_TIMEOUT_S = 1800.0


class DatabaseSettings(Struct, frozen=True):
    """Each wait for a server has a limit. Beyond it the work is tried again: the server, or the network, may be gone
    without a word, and somebody else's lock may be held for ever.
    """

    # Until a session is open: the address, logging in, and its first statements. A session that stays silent for as long
    # when a transaction begins or is rolled back is given up.
    connect_s: float = 10.0
    # Until one of the few sessions is free; on SQLite, until this process's other writers are done.
    pool_wait_s: float = 30.0
    # The server's limits: for a row or table that somebody else has locked, for one statement, and for a transaction in
    # which nothing is asked.
    lock_s: float = 10.0
    statement_s: float = 60.0
    idle_in_transaction_s: float = 60.0
    # Ours, for a whole transaction, whatever the server does. Then the connection is cut.
    transaction_s: float = 120.0
    # For what is known to take long: migrations, audits, pruning. It replaces the limits on statement and transaction.
    long_s: float = 3600.0
    # How soon the server notices that we are gone, with all that we have locked.
    keepalive_idle_s: int = 30
    keepalive_every_s: int = 10
    keepalive_tries: int = 3
    # SQLite: how long one process waits for another that writes to the same file.
    busy_s: float = 5.0

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            _require(getattr(self, field) > 0, f"{field} must be more than 0")
        order = ("lock_s", "statement_s", "transaction_s", "long_s")
        for less, more in pairwise(order):
            _require(getattr(self, less) <= getattr(self, more), f"{less} must be at most {more}")
        _require(
            self.idle_in_transaction_s <= self.transaction_s,
            "idle_in_transaction_s must be at most transaction_s",
        )
        held_s = self.pool_wait_s + 2 * self.connect_s + self.transaction_s
        _require(
            held_s < CONSUMER_TIMEOUT_S,
            f"pool_wait_s, twice connect_s and transaction_s make {held_s:.0f}: must be less than the {CONSUMER_TIMEOUT_S:.0f} s"
            " for which a consumer may hold a delivery",
        )

    @property
    def of_sessions(self) -> dict[str, str]:
        """What PostgreSQL is told when a session opens. Over a Unix socket it ignores what is about TCP."""
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
    """At least one: for PostgreSQL 0 is no limit."""
    return str(max(1, round(seconds * 1000)))


def _require(holds: bool, what: str) -> None:  # noqa: FBT001 - a condition to check is not a switch
    if not holds:
        raise ValueError(what)
