"""Faults that are injected, beside those of hosts. Each is a value with its time, the process it concerns, and its
duration.
"""

from msgspec import Struct


class Fault(Struct, frozen=True, tag_field="kind"):
    """`process` is a role and a number, such as `scheduler-1`: the process that has this name at that time."""

    at_s: float
    process: str = ""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class Crash(Fault, frozen=True, tag="crash"):
    """The process dies wherever it is, and loses its memory and its connections. Another starts after `down_s`."""

    down_s: float = 1.0


class CrashAt(Fault, frozen=True, tag="crash_at"):
    """The process dies when it next reaches this point: before_commit, after_commit, before_ack, in_timer, on_the_way,
    in_outbox.

    Its unacknowledged messages are redelivered only after `quiet_s`, so that other messages about the same entities
    overtake them.
    """

    point: str = "after_commit"
    down_s: float = 1.0
    quiet_s: float = 0.0

    @property
    def name(self) -> str:
        return f"crash_{self.point}"


class Zombie(Fault, frozen=True, tag="zombie"):
    """The process is taken for dead: its connections are cut and another starts. It continues the work in hand,
    connects to the broker again after `away_s`, and dies after `for_s`.
    """

    away_s: float = 1.0
    for_s: float = 3.0


class Cut(Fault, frozen=True, tag="cut"):
    """All connections of the process break; it may connect again at once."""


class LostConfirm(Fault, frozen=True, tag="lost_confirm"):
    """The next parcel of the process arrives, but its connection breaks before the confirm."""


class LostPublish(Fault, frozen=True, tag="lost_publish"):
    """The connection of the process breaks before the broker has stored its next parcel."""


class LateConfirms(Fault, frozen=True, tag="late_confirms"):
    """The broker stores the next parcels of the process at once, and confirms them late."""

    by_s: float = 1.0
    parcels: int = 1


class Nack(Fault, frozen=True, tag="nack"):
    """A queue is full: the broker refuses the next parcels whose key starts with `key`. With `is_stored`, another
    queue has stored them.
    """

    key: str = ""
    parcels: int = 1
    is_stored: bool = False


class Unroutable(Fault, frozen=True, tag="unroutable"):
    """For a while no queue is bound for orders and questions whose key starts with `key`."""

    key: str = ""
    for_s: float = 1.0


class QueueGone(Fault, frozen=True, tag="queue_gone"):
    """The queue is deleted, and declared again later. Only for queues of questions: other queues must not lose
    messages.
    """

    queue: str = ""
    for_s: float = 1.0


class Deadlock(Fault, frozen=True, tag="deadlock"):
    """The next transaction of the process is the victim of a deadlock when it locks rows."""


class SerialisationFailure(Fault, frozen=True, tag="serialisation_failure"):
    """The next transaction of the process fails at the commit: nothing is written."""


class LostAtCommit(Fault, frozen=True, tag="lost_at_commit"):
    """The connection of the process to its database breaks at its next commit. `is_done` says whether the commit took
    effect; the process cannot know.
    """

    is_done: bool = False

    @property
    def name(self) -> str:
        return f"{'lost_after' if self.is_done else 'lost_before'}_commit"


class DatabaseAway(Fault, frozen=True, tag="database_away"):
    """The process cannot reach its database for this time."""

    for_s: float = 1.0


class Hostile(Fault, frozen=True, tag="hostile"):
    """An intruder sends broken bytes as a message of this type, or a forged message."""

    content: str = ""
    message_type: str = ""
    seed: int = 0

    @property
    def name(self) -> str:
        return f"hostile_{self.content}"


class Duplicate(Fault, frozen=True, tag="duplicate"):
    """The next parcel whose key starts with `key` is delivered again after this time."""

    key: str = ""
    after_s: float = 0.0


class LateRedelivery(Fault, frozen=True, tag="late_redelivery"):
    """The process does not read its next delivery until the connection breaks; then the delivery goes to another
    consumer.
    """

    held_s: float = 1.0


class Reorder(Fault, frozen=True, tag="reorder"):
    """Deliveries of queues whose name ends with `queue` are delayed, so that those of other queues overtake them."""

    queue: str = ""
    for_s: float = 1.0


class ClockJump(Fault, frozen=True, tag="clock_jump"):
    """The clock of the process jumps by this many seconds, forwards or backwards."""

    by_s: float = 0.0


class FeedDrop(Fault, frozen=True, tag="feed_drop"):
    """The next parcels of the feed to this process are lost."""

    parcels: int = 1


class FeedGone(Fault, frozen=True, tag="feed_gone"):
    """The process is cut off for this time, and meanwhile its feed queue is deleted, as RabbitMQ deletes a queue that
    nobody reads.
    """

    for_s: float = 1.0


class RoleDown(Fault, frozen=True, tag="role_down"):
    """All processes of a role are down at the same time: the API level, or placement."""

    role: str = ""
    for_s: float = 3.0

    @property
    def name(self) -> str:
        return f"{self.role}_down"


class CellDown(Fault, frozen=True, tag="cell_down"):
    """A cell is down for this time: its conductors, their database, or its way to the broker (`what`)."""

    cell: str = ""
    what: str = "conductors"
    for_s: float = 20.0

    @property
    def name(self) -> str:
        return f"cell_without_{self.what}"


class BrokerRestart(Fault, frozen=True, tag="broker_restart"):
    """Every connection breaks; transient messages are lost."""


class Pause(Fault, frozen=True, tag="pause"):
    """The process is suspended for this time, as a virtual machine may be, and then continues as if no time had passed.
    Its connections break meanwhile.
    """

    for_s: float = 1.0


class Leave(Fault, frozen=True, tag="leave"):
    """A daemon is told to stop: it hands its nodes over, and another starts under its name after `down_s`."""

    down_s: float = 1.0


class Drain(Fault, frozen=True, tag="drain"):
    """An operator drains a daemon for this time: it hands its nodes over."""

    for_s: float = 1.0


class LostAnswer(Fault, frozen=True, tag="lost_answer"):
    """Ironic carries out a daemon's next request, but the answer is lost."""


class IronicAway(Fault, frozen=True, tag="ironic_away"):
    """Ironic's API cannot be reached for this time; Ironic's conductors continue to work."""

    for_s: float = 1.0


POINTS = ("before_commit", "after_commit", "before_ack", "in_timer")
# A parcel leaves the process and never reaches the broker: the process waits for the confirm, and dies before it comes.
ON_THE_WAY = "on_the_way"
# A scheduler's timer has committed rows, and dies before it sends their messages.
IN_OUTBOX = "in_outbox"
DATABASE_FAULTS = (
    "deadlock",
    "serialisation_failure",
    "lost_before_commit",
    "lost_after_commit",
    "database_away",
)
# Faults that are armed on a process, and fire at its next parcel, delivery or transaction.
ARMED_FAULTS = (
    *("lost_confirm", "lost_publish", "late_confirms", "late_redelivery", "feed_drop"),
    *("deadlock", "serialisation_failure", "lost_before_commit", "lost_after_commit"),
    "lost_answer",
)
# Faults of the daemons of bare metal, and of Ironic.
DAEMON_FAULTS = ("pause", "leave", "drain", "lost_answer", "ironic_away")
BROKEN_BODIES = (
    *("not_utf8", "unknown_type", "wrong_field", "nul", "deep", "truncated", "oversized", "among_good"),
)
FORGERIES = (
    *(
        "foreign_release",
        "foreign_consumer",
        "foreign_report",
        "foreign_end",
        "foreign_host",
        "foreign_destroy",
    ),
    *(
        "forged_header",
        "unnamed",
        "wrong_key",
        "stolen_answer",
        "forged_answer",
        "foreign_project",
        "wrong_answer",
    ),
)
# Attacks of a cell on what another owner has. Only some seeds have them.
FOREIGN_OWNERS = ("foreign_group", "foreign_heir", "foreign_tombstone", "foreign_name")
# A message that its handler can never complete: the database refuses its row each time.
CURSED = "cursed"
# Requests with these ids have a row that the database refuses; all other ids are larger.
CURSED_IDS = range(1, 2**32)
OUTAGES = ("conductors", "database", "broker")
ALL_FAULTS = (
    "crash",
    *(f"crash_{point}" for point in (*POINTS, ON_THE_WAY, IN_OUTBOX)),
    "zombie",
    "cut",
    "lost_confirm",
    "lost_publish",
    "late_confirms",
    "nack",
    "unroutable",
    "queue_gone",
    *DATABASE_FAULTS,
    "duplicate",
    "late_redelivery",
    "reorder",
    "clock_jump",
    "feed_drop",
    "feed_gone",
    "scheduler_down",
    "placement_down",
    "broker_restart",
    *(f"cell_without_{what}" for what in OUTAGES),
    *(f"hostile_{content}" for content in (*BROKEN_BODIES, *FORGERIES, *FOREIGN_OWNERS, CURSED)),
)
# Consequences of several faults together, counted from outside.
CONSEQUENCES = ("redelivered", "between_commit_and_redelivery")
# Faults of hosts, by their own fault script.
HOST_FAULTS = ("fails_to_build", "builds_slowly", "falls_silent", "comes_back_late", "dies", "changes")
