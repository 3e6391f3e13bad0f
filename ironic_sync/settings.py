"""What an operator may tune of a daemon that keeps bare-metal nodes."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from bus.topology import IRONIC, IRONIC_EVENTS, IRONIC_TOPIC
from ironic_sync.inbox import Inbox
from kit.login import RestService
from kit.settings import Count, Seconds, Section, require


class IronicSettings(Struct, frozen=True, kw_only=True):
    lease_s: Annotated[
        Seconds,
        Meta(
            description="How long a daemon is a member of the ring without a renewal; then the others take its nodes. Shorter takes over "
            "sooner; longer tolerates a slow database."
        ),
    ] = 10.0
    renew_s: Annotated[
        Seconds,
        Meta(
            description="How often the lease is renewed. Shorter leaves more tries before it ends, for more queries."
        ),
    ] = 2.0
    renew_wait_s: Annotated[
        Seconds,
        Meta(
            description="How long the database may take for a renewal before the daemon asks again. Longer waits for a slow database; with "
            "renew_s it must be less than lease_s minus lease_margin_s."
        ),
    ] = 3.0
    lease_margin_s: Annotated[
        Seconds,
        Meta(
            description="A daemon stops acting on its nodes when its lease has less than this left. Larger is safer against two daemons on one "
            "node; smaller tolerates a slower database."
        ),
    ] = 3.0
    look_s: Annotated[
        Seconds,
        Meta(
            description="How often a daemon looks who the members are, and for nodes without a live owner. Shorter takes nodes over sooner, for "
            "more queries. It must be less than lease_s."
        ),
    ] = 0.5
    balance_s: Annotated[
        Seconds,
        Meta(
            description="How often a daemon compares all its nodes with the ring: a node whose instance is gone may belong to another daemon by "
            "now. Shorter balances sooner, for more queries."
        ),
    ] = 30.0
    page: Annotated[
        Count,
        Meta(
            description="How many rows are read, or change their owner, in one transaction. More is faster; fewer keeps transactions short."
        ),
    ] = 1000
    skew_ms: Annotated[
        Count,
        Meta(
            description="Two notifications of different publishers that are nearer than this many milliseconds have no order, and the node is "
            "read again. Larger tolerates worse clocks, for more reads."
        ),
    ] = 2000
    sweep_s: Annotated[
        Seconds,
        Meta(
            description="How often all nodes are read from Ironic and compared. Shorter finds lost notifications sooner, and loads Ironic more."
        ),
    ] = 300.0
    doubts_s: Annotated[
        Seconds,
        Meta(
            description="How often nodes in doubt are looked for and read again. Shorter settles doubts sooner, for more reads."
        ),
    ] = 5.0
    changes_s: Annotated[
        Seconds,
        Meta(
            description="How often Ironic is asked which nodes changed lately. Shorter finds changes without a notification sooner, for more "
            "requests."
        ),
    ] = 20.0
    reads_at_once: Annotated[
        Count,
        Meta(
            description="How many nodes in doubt are read at once. More settles many doubts sooner; fewer loads Ironic less."
        ),
    ] = 16
    reports_at_once: Annotated[
        Count,
        Meta(
            description="How many nodes are reported to placement at once. More is faster at the start; fewer loads placement less."
        ),
    ] = 100
    report_again_s: Annotated[
        Seconds,
        Meta(
            description="The pause before a report is tried again that placement did not take. Shorter recovers sooner; longer spares "
            "placement."
        ),
    ] = 10.0
    beat_s: Annotated[
        Seconds,
        Meta(
            description="How often a daemon vouches for its nodes. Shorter shows sooner that nodes live, for more messages. It must be well "
            "below host_down_s of [bus]."
        ),
    ] = 5.0
    deploys_at_once: Annotated[
        Count,
        Meta(
            description="For how many nodes Ironic is asked for the next step of a deploy at once. More deploys large bursts sooner; fewer "
            "loads Ironic less."
        ),
    ] = 10
    due_s: Annotated[
        Seconds,
        Meta(
            description="How often a daemon looks for deploys that are due, which finds orders that another daemon took. Shorter acts sooner, "
            "for more queries."
        ),
    ] = 0.5
    deploy_read_s: Annotated[
        Seconds,
        Meta(
            description="How often a node that Ironic works on is read although no notification came. Shorter notices lost notifications "
            "sooner, for more reads."
        ),
    ] = 15.0
    progress_s: Annotated[
        Seconds,
        Meta(
            description="How often the conductor is told that Ironic still works on a node. It must be well below the conductors' "
            "deploy_timeout_s, or they give up the deploy."
        ),
    ] = 120.0
    deploy_retry_s_first: Annotated[
        Seconds,
        Meta(
            description="The pause before a step is tried again that Ironic did not take; each further pause is twice as long. Shorter goes on "
            "sooner; longer spares Ironic."
        ),
    ] = 1.0
    deploy_retry_s_max: Annotated[
        Seconds,
        Meta(
            description="The longest pause between tries of a step. Longer spares an Ironic that is down; shorter goes on sooner when it is "
            "back."
        ),
    ] = 60.0
    missing_few: Annotated[
        Count,
        Meta(
            description="If Ironic loses more nodes at once than this, and more than missing_share, they are held and not removed: another "
            "Ironic may answer. Higher believes larger losses at once."
        ),
    ] = 5
    missing_share: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        Meta(
            description="The share of a daemon's nodes that may be missing at once before they are held. Higher believes larger losses at once; "
            "lower protects more instances."
        ),
    ] = 0.2
    missing_believed_s: Annotated[
        Seconds,
        Meta(
            description="After how long missing nodes that were held are removed. Longer leaves more time to mend Ironic; shorter lets go of "
            "removed nodes sooner."
        ),
    ] = 3600.0
    foreign_providers: Annotated[
        Literal["leave", "take"],
        Meta(
            description="What a daemon does with a node whose provider something else keeps in placement: leave it alone, or take it over."
        ),
    ] = "leave"
    deleted_kept_s: Annotated[
        Seconds,
        Meta(
            description="How long the row of a node is kept after Ironic deleted it and placement let go of it. Longer shows its history "
            "longer; shorter needs fewer rows."
        ),
    ] = 7 * 86400.0
    exchange: Annotated[
        str,
        Meta(description="The exchange to which Ironic publishes its notifications."),
    ] = IRONIC
    topics: Annotated[
        tuple[str, ...],
        Meta(description="The topics of Ironic's versioned notifications."),
    ] = (IRONIC_TOPIC,)
    queue: Annotated[
        str,
        Meta(
            description="The queue in which notifications wait for the daemons; all daemons of one Ironic share it."
        ),
    ] = IRONIC_EVENTS

    def __post_init__(self) -> None:
        # This checks the names.
        _ = self.inbox
        require(
            self.renew_s + self.renew_wait_s < self.acting_s,
            f"renew_s and renew_wait_s make {self.renew_s + self.renew_wait_s:g}, must be less than lease_s minus "
            f"lease_margin_s ({self.acting_s:g}): else one slow renewal stops the daemon",
        )
        require(
            self.deploy_retry_s_first <= self.deploy_retry_s_max,
            f"deploy_retry_s_first is {self.deploy_retry_s_first}, must be at most deploy_retry_s_max "
            f"({self.deploy_retry_s_max})",
        )
        require(
            self.look_s < self.lease_s, f"look_s is {self.look_s}, must be less than lease_s ({self.lease_s})"
        )

    @property
    def inbox(self) -> Inbox:
        """Where Ironic's notifications are read."""
        return Inbox(exchange=self.exchange, topics=self.topics, queue=self.queue)

    @property
    def acting_s(self) -> float:
        """How long after a renewal a daemon may act on its nodes."""
        return self.lease_s - self.lease_margin_s


# Addresses and names are stated in another way (bus/addresses.py, flags).
IRONIC_DAEMONS = Section(
    "ironic",
    IronicSettings,
    "the bare-metal daemons",
    others=("url", "bus_url", "db_url", "name", "cell", "groups", "shards", "sim_*"),
)
IRONIC_API = RestService(
    name="Ironic",
    url_key="ironic_url",
    # The second is the one that it had before.
    types=("baremetal", "bare-metal"),
    version="/v1",
)
