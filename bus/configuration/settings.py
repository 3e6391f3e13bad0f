"""The settings of the bus: batch sizes, limits and timeouts. Relations between them are checked here."""

from collections.abc import Iterable

from msgspec import Struct

from bus.broker import PARCEL_BYTES_MAX, PARCEL_ITEMS_MAX


class BusSettings(Struct, frozen=True):
    """The settings of publishing, consuming and retries. The defaults come from measurements (docs/architecture.md)."""

    # Publishing: how long a message waits for others while parcels are under way, and how many parcels may be
    # unconfirmed. The client walks all of them at each confirm, so more makes it slower, not faster.
    linger_ms: float = 2.0
    parcels_unconfirmed_max: int = 64
    parcel_items_max: int = PARCEL_ITEMS_MAX
    parcel_bytes_max: int = PARCEL_BYTES_MAX
    # Messages that wait because the broker accepts nothing: at half of this number workers take no more batches, at all
    # of it nothing more is accepted.
    messages_waiting_max: int = 50_000
    # Consuming: the parcels prefetched by a worker, the messages in a batch, and the batches that may be saved but not
    # yet confirmed.
    prefetch: int = 200
    batch_items_max: int = 500
    batches_unsaid_max: int = 2
    # Unconfirmed messages on rows are sent again at start, and at this interval.
    sweep_s: float = 30.0
    # Retries: transient failures in place, within the worker, and then by way of the queue.
    tries_in_place_max: int = 4
    retry_delay_ms_first: float = 20.0
    retry_delay_ms_max: float = 30_000.0
    # Less than the broker's delivery limit, so that a dead letter carries our reason.
    attempts_max: int = 20
    # The pause after a failure for which the message is not to blame, such as another session's lock.
    blameless_delay_ms: float = 2_000.0
    # A message of a newer version is returned to its queue after this pause. After about this total time, as a rolling
    # upgrade takes minutes, it becomes a dead letter.
    newer_delay_ms: float = 5_000.0
    newer_wait_s_max: float = 3_600.0
    # Asking: the time until a question is repeated, and until it fails.
    ask_again_ms: float = 2_000.0
    answer_timeout_ms: float = 30_000.0
    # Connecting.
    connect_delay_ms_first: float = 50.0
    connect_delay_ms_max: float = 5_000.0
    # A host without a heartbeat for so long is down, for schedulers and for the conductors of its cell.
    host_down_s: float = 60.0
    # Stopping: how long unfinished work may take before it is returned to the queue.
    drain_ms_max: float = 20_000.0

    @property
    def newer_waits_max(self) -> int:
        """How often a message of a newer version is returned to wait for a newer worker."""
        return int(self.newer_wait_s_max * 1000 / self.newer_delay_ms)

    def __post_init__(self) -> None:
        bounds = {"parcel_items_max": PARCEL_ITEMS_MAX, "parcel_bytes_max": PARCEL_BYTES_MAX}
        for field, bound in bounds.items():
            require(0 < getattr(self, field) <= bound, f"{field} must be 1..{bound}")
        two_parcels = 2 * self.parcel_items_max
        require(
            self.messages_waiting_max >= two_parcels,
            f"messages_waiting_max must be at least two parcels ({two_parcels})",
        )
        for count in (
            "prefetch",
            "batch_items_max",
            "attempts_max",
            "parcels_unconfirmed_max",
            "batches_unsaid_max",
            "tries_in_place_max",
        ):
            require(getattr(self, count) >= 1, f"{count} must be at least 1")
        require_positive(
            self,
            (
                *("sweep_s", "ask_again_ms", "newer_delay_ms", "newer_wait_s_max", "connect_delay_ms_max"),
                "host_down_s",
            ),
        )
        for less, more in (
            ("connect_delay_ms_first", "connect_delay_ms_max"),
            ("retry_delay_ms_first", "retry_delay_ms_max"),
            ("ask_again_ms", "answer_timeout_ms"),
        ):
            most = getattr(self, more)
            require(getattr(self, less) <= most, f"{less} must be at most {more} ({most})")


def require_positive(settings: Struct, fields: Iterable[str]) -> None:
    """Raise ValueError if one of these settings is not more than 0."""
    for field in fields:
        value = getattr(settings, field)
        if value <= 0:
            raise ValueError(f"{field} is {value}, must be more than 0")


def require(holds: bool, what: str) -> None:  # noqa: FBT001 - a condition to check is not a switch
    """Raise ValueError with this text unless the condition holds. Used for settings that contradict each other."""
    if not holds:
        raise ValueError(what)
