"""How patient, how greedy and how stubborn the bus is. Relations between the limits are asserted here."""

from msgspec import Struct

from bus.broker import PARCEL_BYTES_MAX, PARCEL_ITEMS_MAX


class BusSettings(Struct, frozen=True):
    """The defaults come from measurements: docs/architecture.md says which."""

    # Publishing: how long a lone message waits for company while others are under way, and how many parcels may be
    # unconfirmed. The client walks all of them at each confirm: more makes it slower, not faster.
    linger_ms: float = 2.0
    parcels_unconfirmed_max: int = 64
    parcel_items_max: int = PARCEL_ITEMS_MAX
    parcel_bytes_max: int = PARCEL_BYTES_MAX
    # Messages that wait because the broker takes nothing: at half of it workers take no more batches, and at all of it
    # nothing more is taken.
    messages_waiting_max: int = 50_000
    # Consuming: parcels on their way to a worker, messages it takes at once, and how many batches it may have saved
    # but not yet said.
    prefetch: int = 200
    batch_items_max: int = 500
    batches_unsaid_max: int = 2
    # Messages kept on their rows are said again at start, and this often.
    sweep_s: float = 30.0
    # Trying again: within a worker at once and for what is transient, and by way of the queue.
    tries_in_place_max: int = 4
    retry_delay_ms_first: float = 20.0
    retry_delay_ms_max: float = 30_000.0
    # Less than the broker's own limit of deliveries, so that a dead letter carries our reason and not just its.
    attempts_max: int = 20
    # What failed by no fault of its own, such as another's lock, waits this long before it is tried again.
    blameless_delay_ms: float = 2_000.0
    # A message of a newer version waits this long before it is offered to another worker; and, as a rolling upgrade takes
    # minutes, about so long until it is a dead letter.
    newer_delay_ms: float = 5_000.0
    newer_wait_s_max: float = 3_600.0
    # Asking: how long until a question is asked again, and until it has no answer.
    ask_again_ms: float = 2_000.0
    answer_timeout_ms: float = 30_000.0
    # Connecting.
    connect_delay_ms_first: float = 50.0
    connect_delay_ms_max: float = 5_000.0
    # Stopping: how long work in hand may take before it is given back unfinished.
    drain_ms_max: float = 20_000.0

    @property
    def newer_waits_max(self) -> int:
        """How often a message of a newer version is offered to another worker."""
        return int(self.newer_wait_s_max * 1000 / self.newer_delay_ms)

    def __post_init__(self) -> None:
        _require(0 < self.parcel_items_max <= PARCEL_ITEMS_MAX, "parcel_items_max", f"1..{PARCEL_ITEMS_MAX}")
        _require(0 < self.parcel_bytes_max <= PARCEL_BYTES_MAX, "parcel_bytes_max", f"1..{PARCEL_BYTES_MAX}")
        _require(
            self.messages_waiting_max >= 2 * self.parcel_items_max,
            "messages_waiting_max",
            f"at least two parcels ({2 * self.parcel_items_max})",
        )
        for count in (
            "prefetch",
            "batch_items_max",
            "attempts_max",
            "parcels_unconfirmed_max",
            "batches_unsaid_max",
            "tries_in_place_max",
        ):
            _require(getattr(self, count) >= 1, count, "at least 1")
        for period in (
            "sweep_s",
            "ask_again_ms",
            "newer_delay_ms",
            "newer_wait_s_max",
            "connect_delay_ms_max",
        ):
            _require(getattr(self, period) > 0, period, "more than 0")
        _require(
            self.connect_delay_ms_first <= self.connect_delay_ms_max,
            "connect_delay_ms_first",
            f"at most connect_delay_ms_max ({self.connect_delay_ms_max})",
        )
        _require(
            self.retry_delay_ms_first <= self.retry_delay_ms_max,
            "retry_delay_ms_first",
            f"at most retry_delay_ms_max ({self.retry_delay_ms_max})",
        )
        _require(
            self.ask_again_ms <= self.answer_timeout_ms,
            "ask_again_ms",
            f"at most answer_timeout_ms ({self.answer_timeout_ms})",
        )


def _require(holds: bool, field: str, what: str) -> None:  # noqa: FBT001 - a condition to check is not a switch
    if not holds:
        raise ValueError(f"{field} must be {what}")
