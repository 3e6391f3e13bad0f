"""The settings of the bus and of databases: batch sizes, limits and timeouts. Relations between them are checked here."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeVar

from msgspec import Meta, Struct

from bus.broker import PREFETCH_MAX
from bus.message import PARCEL_BYTES_MAX, PARCEL_ITEMS_MAX
from kit.database_settings import DATABASE, DatabaseSettings
from kit.process import exiting_if_wrong
from kit.settings import Count, Milliseconds, MillisecondsOr0, Seconds, Section, require

S = TypeVar("S", bound=Struct)


class BusSettings(Struct, frozen=True):
    """The settings of publishing, consuming and retries, and the constants that no operator need change: tests and the simulation
    do, in a subclass. All come from measurements (docs/benchmarks.md).
    """

    # How long a message waits for others to share its parcel while parcels are under way. Most answers come in that time.
    LINGER_MS: ClassVar[float] = 2.0
    # Parcels that may wait for the broker's confirm at once. The client walks all of them at each confirm: more is not faster.
    PARCELS_UNCONFIRMED_MAX: ClassVar[int] = 64
    # Larger parcels cost less for each message. One more of either begins another parcel.
    PARCEL_ITEMS_MAX: ClassVar[int] = PARCEL_ITEMS_MAX
    PARCEL_BYTES_MAX: ClassVar[int] = PARCEL_BYTES_MAX
    # How many messages are handled in one transaction: more holds locks longer, and is hardly faster.
    BATCH_ITEMS_MAX: ClassVar[int] = 500
    # How far apart batches of few messages begin while parcels keep coming (`Pace`). Every asker waits for as long.
    GATHER_MS: ClassVar[float] = 60.0
    # Saved batches that may wait for the confirm of their messages: two hide a slow broker, and little is repeated after a crash.
    BATCHES_UNSAID_MAX: ClassVar[int] = 2
    # How often unconfirmed messages on rows are sent again, besides at the start.
    SWEEP_S: ClassVar[float] = 30.0
    # After how many deliveries a message becomes a dead letter. At the limit of the broker (40) dead letters would have no reason.
    ATTEMPTS_MAX: ClassVar[int] = 20
    # How often a message that meets a transient failure is tried within the worker, before it goes back to its queue.
    TRIES_IN_PLACE_MAX: ClassVar[int] = 4
    RETRY_DELAY_MS_FIRST: ClassVar[float] = 20.0
    RETRY_DELAY_MS_MAX: ClassVar[float] = 30_000.0
    # The pause after a failure for which the message is not to blame, such as another session's lock.
    BLAMELESS_DELAY_MS: ClassVar[float] = 2_000.0
    # How long and how often a message of a newer version waits for an upgraded worker: an hour, longer than a rolling upgrade takes.
    NEWER_DELAY_MS: ClassVar[float] = 5_000.0
    NEWER_WAITS_MAX: ClassVar[int] = 720
    # Sooner would double the load of a slow worker.
    ASK_AGAIN_MS: ClassVar[float] = 2_000.0
    CONNECT_DELAY_MS_FIRST: ClassVar[float] = 50.0
    CONNECT_DELAY_MS_MAX: ClassVar[float] = 5_000.0

    messages_waiting_max: Annotated[
        Count,
        Meta(
            description="How many messages may wait in a process while the broker accepts none. At half of it workers take no more batches, at "
            "all of it sending fails. More bridges longer outages, for memory."
        ),
    ] = 50_000
    prefetch: Annotated[
        int,
        Meta(
            ge=1,
            le=PREFETCH_MAX,
            description="How many parcels the broker hands to a worker ahead. More keeps a busy worker from waiting; fewer shares the work more "
            "evenly among workers. Of the requests of all clients a scheduler is handed at least a batch.",
        ),
    ] = 200
    answer_timeout_ms: Annotated[
        Milliseconds,
        Meta(
            description="The time after which a question without an answer fails. Longer survives short outages; shorter reports them sooner."
        ),
    ] = 30_000.0
    host_down_s: Annotated[
        Seconds,
        Meta(
            description="After how long without a heartbeat a host counts as down, for schedulers and for its cell. Shorter reacts to lost "
            "hosts sooner; too short takes slow ones for lost."
        ),
    ] = 60.0
    drain_ms_max: Annotated[
        MillisecondsOr0,
        Meta(
            description="How long a stopping process finishes its work; the rest returns to the queue. Longer repeats less work; shorter stops "
            "sooner."
        ),
    ] = 20_000.0

    def __post_init__(self) -> None:
        two_parcels = 2 * self.PARCEL_ITEMS_MAX
        require(
            self.messages_waiting_max >= two_parcels,
            f"messages_waiting_max must be at least two parcels ({two_parcels})",
        )

    @property
    def ask_again_ms(self) -> float:
        """The time after which an unanswered question is asked again: at least three times before it fails."""
        return min(self.ASK_AGAIN_MS, self.answer_timeout_ms / 4)


BUS = Section(
    "bus",
    BusSettings,
    "every worker: publishing, consuming, asking and retrying",
    others=("url",),
)


def settings_for_main(
    environment: Mapping[str, str], section: Section[S]
) -> tuple[S, BusSettings, DatabaseSettings]:
    """Read the settings of a worker, its bus and its database from the environment. A wrong one ends the process."""
    with exiting_if_wrong():
        return section.read(environment), BUS.read(environment), DATABASE.read(environment)
