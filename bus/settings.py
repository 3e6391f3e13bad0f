"""The settings of the bus and of databases: batch sizes, limits and timeouts. Relations between them are checked here."""

from collections.abc import Mapping
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from bus.broker import PARCEL_BYTES_MAX, PARCEL_ITEMS_MAX
from kit.database_settings import DATABASE, DatabaseSettings
from kit.process import exiting_if_wrong
from kit.settings import Count, Milliseconds, MillisecondsOr0, Seconds, Section, require

S = TypeVar("S", bound=Struct)


class BusSettings(Struct, frozen=True):
    """The settings of publishing, consuming and retries. The defaults come from measurements (docs/architecture.md)."""

    linger_ms: Annotated[
        MillisecondsOr0,
        Meta(
            description="How long a message waits for others to share its parcel while parcels are under way. Longer makes fewer, larger "
            "parcels; shorter answers sooner."
        ),
    ] = 2.0
    parcels_unconfirmed_max: Annotated[
        Count,
        Meta(
            description="How many parcels may wait for the broker's confirm at once. The client walks all of them at each confirm, so more is "
            "not faster; too few leaves a distant broker idle."
        ),
    ] = 64
    parcel_items_max: Annotated[
        Annotated[int, Meta(ge=1, le=PARCEL_ITEMS_MAX)],
        Meta(
            description="How many messages one parcel may have. More costs less for each message; fewer makes smaller units of retry."
        ),
    ] = PARCEL_ITEMS_MAX
    parcel_bytes_max: Annotated[
        Annotated[int, Meta(ge=1, le=PARCEL_BYTES_MAX)],
        Meta(
            description="The size of a parcel beyond which the next one begins. Larger costs less for each message; smaller needs less memory "
            "in the broker and the workers."
        ),
    ] = PARCEL_BYTES_MAX
    messages_waiting_max: Annotated[
        Count,
        Meta(
            description="How many messages may wait in a process while the broker accepts none. At half of it workers take no more batches, at "
            "all of it sending fails. More bridges longer outages, for memory."
        ),
    ] = 50_000
    prefetch: Annotated[
        Count,
        Meta(
            description="How many parcels the broker hands to a worker ahead. More keeps a busy worker from waiting; fewer shares the work more "
            "evenly among workers. Of the requests of all clients a scheduler is handed at least `batch_items_max`."
        ),
    ] = 200
    batch_items_max: Annotated[
        Count,
        Meta(
            description="How many messages are handled in one transaction. More is faster under load; fewer keeps transactions and locks short."
        ),
    ] = 500
    gather_ms: Annotated[
        # A worker that stops, and every asker, waits for as long.
        Annotated[float, Meta(ge=0, le=1000)],
        Meta(
            description="How far apart batches of few messages begin while parcels keep coming. Longer costs less under a middling load; "
            "shorter answers sooner."
        ),
    ] = 60.0
    batches_unsaid_max: Annotated[
        Count,
        Meta(
            description="How many saved batches may wait for the confirm of their messages. More hides a slow broker; fewer repeats less work "
            "after a crash."
        ),
    ] = 2
    sweep_s: Annotated[
        Seconds,
        Meta(
            description="How often unconfirmed messages on rows are sent again, besides at the start. Shorter recovers lost messages sooner, "
            "for more queries."
        ),
    ] = 30.0
    tries_in_place_max: Annotated[
        Count,
        Meta(
            description="How often a message that meets a transient failure is tried within the worker, before it goes back to its queue. More "
            "spares the broker; fewer frees the worker sooner."
        ),
    ] = 4
    retry_delay_ms_first: Annotated[
        MillisecondsOr0,
        Meta(
            description="The first pause after a transient failure; each further one is longer. Shorter recovers sooner; longer spares what "
            "failed."
        ),
    ] = 20.0
    retry_delay_ms_max: Annotated[
        MillisecondsOr0,
        Meta(
            description="The longest pause between tries. Longer spares a server that is down; shorter goes on sooner when it is back."
        ),
    ] = 30_000.0
    attempts_max: Annotated[
        Count,
        Meta(
            description="After how many deliveries a message becomes a dead letter. It must be less than the limit of the broker (40), or dead "
            "letters have no reason. Fewer gives up sooner; more survives longer trouble."
        ),
    ] = 20
    blameless_delay_ms: Annotated[
        MillisecondsOr0,
        Meta(
            description="The pause after a failure for which the message is not to blame, such as another session's lock. Shorter tries sooner; "
            "longer spares a busy database."
        ),
    ] = 2_000.0
    newer_delay_ms: Annotated[
        Milliseconds,
        Meta(
            description="The pause before a message of a newer version returns to its queue. Shorter finds an upgraded worker sooner, for more "
            "deliveries meanwhile."
        ),
    ] = 5_000.0
    newer_wait_s_max: Annotated[
        Seconds,
        Meta(
            description="How long messages of a newer version wait for an upgraded worker before they become dead letters. It must be longer "
            "than a rolling upgrade takes."
        ),
    ] = 3_600.0
    ask_again_ms: Annotated[
        Milliseconds,
        Meta(
            description="The time after which an unanswered question is asked again. Shorter recovers sooner from a lost answer; too short "
            "doubles the load of a slow worker."
        ),
    ] = 2_000.0
    answer_timeout_ms: Annotated[
        Milliseconds,
        Meta(
            description="The time after which a question without an answer fails. Longer survives short outages; shorter reports them sooner."
        ),
    ] = 30_000.0
    connect_delay_ms_first: Annotated[
        MillisecondsOr0,
        Meta(
            description="The first pause before connecting to the broker again; each further one is longer. Shorter reconnects sooner; longer "
            "spares the broker."
        ),
    ] = 50.0
    connect_delay_ms_max: Annotated[
        Milliseconds,
        Meta(
            description="The longest pause before connecting to the broker again. Longer spares a broker that restarts under load; shorter is "
            "back sooner."
        ),
    ] = 5_000.0
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

    @property
    def newer_waits_max(self) -> int:
        """How often a message of a newer version is returned to wait for a newer worker."""
        return int(self.newer_wait_s_max * 1000 / self.newer_delay_ms)

    def __post_init__(self) -> None:
        two_parcels = 2 * self.parcel_items_max
        require(
            self.messages_waiting_max >= two_parcels,
            f"messages_waiting_max must be at least two parcels ({two_parcels})",
        )
        for less, more in (
            ("connect_delay_ms_first", "connect_delay_ms_max"),
            ("retry_delay_ms_first", "retry_delay_ms_max"),
            ("ask_again_ms", "answer_timeout_ms"),
        ):
            most = getattr(self, more)
            require(getattr(self, less) <= most, f"{less} must be at most {more} ({most})")


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
