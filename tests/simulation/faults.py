"""What can go wrong beside what hosts do: each a value that names when, to whom, and how long."""

from msgspec import Struct


class Fault(Struct, frozen=True, tag_field="kind"):
    """`process` is a role and a number, such as `scheduler-1`: whoever bears that name then."""

    at_s: float
    process: str = ""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class Crash(Fault, frozen=True, tag="crash"):
    """Wherever it is: its memory and its connections are gone. Another starts after `down_s`."""

    down_s: float = 1.0


class CrashAt(Fault, frozen=True, tag="crash_at"):
    """When it next comes to this point: before_commit, after_commit, before_ack, in_timer, on_the_way.

    Its queues are dealt out again only after `quiet_s`, so that others may speak of the same entities meanwhile.
    """

    point: str = "after_commit"
    down_s: float = 1.0
    quiet_s: float = 0.0

    @property
    def name(self) -> str:
        return f"crash_{self.point}"


class Zombie(Fault, frozen=True, tag="zombie"):
    """Taken for dead: its connections are cut, another starts; and it goes on with what it has in hand, comes back
    to the broker after `away_s`, and dies after `for_s`.
    """

    away_s: float = 1.0
    for_s: float = 3.0


class Cut(Fault, frozen=True, tag="cut"):
    """All its connections break, and it may connect again at once."""


class LostConfirm(Fault, frozen=True, tag="lost_confirm"):
    """Its next parcel arrives, and the connection breaks before it hears so."""


class LostPublish(Fault, frozen=True, tag="lost_publish"):
    """Its connection breaks before the broker has stored its next parcel."""


class LateConfirms(Fault, frozen=True, tag="late_confirms"):
    """Its next parcels are stored at once, and it hears so much later that they are."""

    by_s: float = 1.0
    parcels: int = 1


class Nack(Fault, frozen=True, tag="nack"):
    """A queue is full: the next parcels with a key that starts so are refused. With `is_stored`, another queue that
    they are for has taken them.
    """

    key: str = ""
    parcels: int = 1
    is_stored: bool = False


class Unroutable(Fault, frozen=True, tag="unroutable"):
    """For a while no queue is bound for orders and questions with a key that starts so."""

    key: str = ""
    for_s: float = 1.0


class QueueGone(Fault, frozen=True, tag="queue_gone"):
    """The queue is deleted, and declared again later. Only queues of questions: what is in others may not be lost."""

    queue: str = ""
    for_s: float = 1.0


class Deadlock(Fault, frozen=True, tag="deadlock"):
    """Its next transaction is the victim of a deadlock when it takes its locks."""


class SerialisationFailure(Fault, frozen=True, tag="serialisation_failure"):
    """Its next transaction fails at its commit: nothing is written."""


class LostAtCommit(Fault, frozen=True, tag="lost_at_commit"):
    """Its connection to the database breaks at its next commit, which is done, or not; it cannot tell."""

    is_done: bool = False

    @property
    def name(self) -> str:
        return f"{'lost_after' if self.is_done else 'lost_before'}_commit"


class DatabaseAway(Fault, frozen=True, tag="database_away"):
    """It cannot reach its database for so long."""

    for_s: float = 1.0


class Hostile(Fault, frozen=True, tag="hostile"):
    """Somebody sends what does harm, or would: bytes on the way of a type of message, or a forged message."""

    content: str = ""
    way: str = ""
    lot: int = 0

    @property
    def name(self) -> str:
        return f"hostile_{self.content}"


class Duplicate(Fault, frozen=True, tag="duplicate"):
    """The next parcel with a key that starts so is delivered again, so much later."""

    key: str = ""
    after_s: float = 0.0


class LateRedelivery(Fault, frozen=True, tag="late_redelivery"):
    """What it is given next from a queue lies there unread, and is dealt out again when its connection breaks."""

    held_s: float = 1.0


class Reorder(Fault, frozen=True, tag="reorder"):
    """Deliveries of queues with names that end so come late, and those of others overtake them."""

    queue: str = ""
    for_s: float = 1.0


class ClockJump(Fault, frozen=True, tag="clock_jump"):
    """Its clock is so many seconds further, or less far, than it was."""

    by_s: float = 0.0


class FeedDrop(Fault, frozen=True, tag="feed_drop"):
    """The next parcels of its feed are not there."""

    parcels: int = 1


class RoleDown(Fault, frozen=True, tag="role_down"):
    """All processes of a role are away at once: the API level, or placement."""

    role: str = ""
    for_s: float = 3.0

    @property
    def name(self) -> str:
        return f"{self.role}_down"


class BrokerRestart(Fault, frozen=True, tag="broker_restart"):
    """Every connection breaks; what was not to be kept is gone."""


class Pause(Fault, frozen=True, tag="pause"):
    """It stands still for so long, as a virtual machine may, and then goes on as if no time had passed. Its connections
    break meanwhile.
    """

    for_s: float = 1.0


class Leave(Fault, frozen=True, tag="leave"):
    """A daemon is told to stop: it gives its nodes away, and another starts under its name after `down_s`."""

    down_s: float = 1.0


class Drain(Fault, frozen=True, tag="drain"):
    """An operator has a daemon give its nodes away, for so long."""

    for_s: float = 1.0


class LostAnswer(Fault, frozen=True, tag="lost_answer"):
    """A daemon's next request to Ironic is carried out, and its answer is lost."""


class IronicAway(Fault, frozen=True, tag="ironic_away"):
    """Ironic's API cannot be reached for so long; its conductors go on working."""

    for_s: float = 1.0


POINTS = ("before_commit", "after_commit", "before_ack", "in_timer")
# A parcel leaves the process and never reaches the broker: the process waits for the confirm, and dies before it comes.
ON_THE_WAY = "on_the_way"
OF_DATABASES = (
    "deadlock",
    "serialisation_failure",
    "lost_before_commit",
    "lost_after_commit",
    "database_away",
)
# What befalls the next parcels, deliveries or transactions of a process.
MARKS = (
    *("lost_confirm", "lost_publish", "late_confirms", "late_redelivery", "feed_drop"),
    *("deadlock", "serialisation_failure", "lost_before_commit", "lost_after_commit"),
    "lost_answer",
)
# What befalls only daemons that look after nodes, and their Ironic.
OF_DAEMONS = ("pause", "leave", "drain", "lost_answer", "ironic_away")
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
# A message that its handler can never do: its database refuses it each time, by nobody's fault.
CURSED = "cursed"
# The ids of requests whose row the database refuses: other ids are larger.
CURSED_IDS = range(1, 2**32)
EVERY_KIND = (
    "crash",
    *(f"crash_{point}" for point in (*POINTS, ON_THE_WAY)),
    "zombie",
    "cut",
    "lost_confirm",
    "lost_publish",
    "late_confirms",
    "nack",
    "unroutable",
    "queue_gone",
    *OF_DATABASES,
    "duplicate",
    "late_redelivery",
    "reorder",
    "clock_jump",
    "feed_drop",
    "scheduler_down",
    "placement_down",
    "broker_restart",
    *(f"hostile_{content}" for content in (*BROKEN_BODIES, *FORGERIES, CURSED)),
)
# What comes of them together, seen from outside.
EVERY_CONSEQUENCE = ("redelivered", "between_commit_and_redelivery", "handed_over")
# What hosts do by themselves, by their fault script.
OF_HOSTS = ("fails_to_build", "builds_slowly", "falls_silent", "comes_back_late", "dies", "changes")
