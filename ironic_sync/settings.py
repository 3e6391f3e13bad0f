"""What an operator may tune of a daemon that keeps bare-metal nodes, and the rules of its parts, which are made of that."""

from typing import Annotated, Literal, Self

from msgspec import Meta, Struct, structs

from bus.topology import IRONIC, IRONIC_EVENTS, IRONIC_TOPIC, Exchange, Limits, Objects, Queue, inbox_queue
from ironic_sync.core.ordering import Belief
from kit.login import RestService
from kit.parts import Pauses
from kit.settings import Count, Seconds, Section, require

# A name or topic must not be a pattern: `#` would also match Ironic's RPC.
_WILDCARDS = frozenset("#*")
# A shorter lease ends while a usual database, or the daemon itself, is slow for a moment.
LEASE_S_LEAST = 2.0


class Inbox(Struct, frozen=True):
    """The settings of an inbox: which topics of which exchange are read, and from which queue.

    The exchange belongs to the other program. With `creates_exchange` the reader creates a missing exchange as Ironic
    would (not durable). That is only for a broker that no Ironic uses.
    """

    exchange: str = IRONIC
    topics: tuple[str, ...] = (IRONIC_TOPIC,)
    queue: str = IRONIC_EVENTS
    creates_exchange: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for field, names in (
            ("exchange", (self.exchange,)),
            ("topics", self.topics),
            ("queue", (self.queue,)),
        ):
            wrong = [name for name in names if not name or _WILDCARDS & {*name}]
            if wrong or not names:
                raise ValueError(f"{field} is {names!r}, must be at least one name without '*' and '#'")

    @property
    def declared(self) -> Queue:
        return inbox_queue(self.queue, self.exchange, self.topics)

    @property
    def objects(self) -> Objects:
        exchanges = (Exchange(self.exchange, durable=False),) if self.creates_exchange else ()
        return Objects(exchanges, (self.declared,), self.limits)


class IronicSettings(Struct, frozen=True, kw_only=True):
    lease_s: Annotated[
        Seconds,
        Meta(
            description="How long a daemon is a member of the ring without a renewal; then the others take its nodes. Shorter takes over "
            "sooner; longer tolerates a slow database."
        ),
    ] = 10.0
    sweep_s: Annotated[
        Seconds,
        Meta(
            description="How often all nodes are read from Ironic and compared. Shorter finds lost notifications sooner, and loads Ironic more."
        ),
    ] = 300.0
    deploys_at_once: Annotated[
        Count,
        Meta(
            description="For how many nodes Ironic is asked for the next step of a deploy at once. More deploys large bursts sooner; fewer "
            "loads Ironic less."
        ),
    ] = 10
    undeploys_unasked: Annotated[
        Count,
        Meta(
            description="On how many nodes the daemons together may in an hour take off, without an order, an instance that has ended and that "
            "Ironic still has there. More clears up sooner; fewer loses less where Ironic's data is wrong."
        ),
    ] = 3
    foreign_providers: Annotated[
        Literal["leave", "take"],
        Meta(
            description="What a daemon does with a node whose provider something else keeps in placement: leave it alone, or take it over."
        ),
    ] = "leave"
    place_property: Annotated[
        str,
        Meta(
            description="The property of a node in Ironic that says where it is, such as dc1/hall2/row7/rack3; what an operator sets here counts before it. Empty: none does."
        ),
    ] = "place"
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
            self.lease_s >= LEASE_S_LEAST, f"lease_s is {self.lease_s:g}, must be at least {LEASE_S_LEAST:g}"
        )

    @property
    def inbox(self) -> Inbox:
        """Where Ironic's notifications are read."""
        return Inbox(exchange=self.exchange, topics=self.topics, queue=self.queue)


class DaemonRules(IronicSettings, frozen=True, kw_only=True):
    """How a daemon's parts work: what the operator may set, and what only tests shorten."""

    # How often a daemon looks who the members are, for nodes without a live owner, and for deploys that another daemon made due:
    # a query each time.
    look_s: float = 0.5
    # How often all nodes are compared with the ring: a node whose instance is gone may belong to another daemon by now.
    balance_s: float = 30.0
    # How many rows are read, or change their owner, in one transaction: more would make it long.
    page: int = 1000
    # How often nodes in doubt are looked for; those that this daemon hears of are read at once.
    doubts_s: float = 5.0
    # How often Ironic is asked which nodes changed lately.
    changes_s: float = 20.0
    # The pause before a report is tried again that placement did not take.
    report_again_s: float = 10.0
    # How often a daemon vouches for its nodes: well below the host_down_s of [bus].
    beat_s: float = 5.0
    # How often a node that Ironic works on is read although no notification came.
    deploy_read_s: float = 15.0
    # How often the conductor is told that Ironic still works on a node: well below its deploy_timeout_s, or it gives up the deploy.
    progress_s: float = 120.0
    # Between the tries of a step that Ironic did not take.
    deploy_pauses: Pauses = Pauses(first_s=1.0, max_s=60.0)
    belief: Belief = Belief()

    @classmethod
    def of(cls, settings: IronicSettings) -> Self:
        return cls(**structs.asdict(settings))

    # A renewal may fail several times before the daemon stops acting on its nodes; and it stops well before the others may take
    # them, whose clocks may differ.

    @property
    def renew_s(self) -> float:
        return self.lease_s * 0.2

    @property
    def renew_wait_s(self) -> float:
        """How long the database may take for a renewal before the daemon asks again."""
        return self.lease_s * 0.3

    @property
    def lease_margin_s(self) -> float:
        """A daemon stops acting on its nodes when its lease has less than this left."""
        return self.lease_s * 0.3

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
