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
    """When it next comes to this point: before_commit, after_commit, before_ack, in_timer.

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


POINTS = ("before_commit", "after_commit", "before_ack", "in_timer")
EVERY_KIND = (
    "crash",
    *(f"crash_{point}" for point in POINTS),
    "zombie",
    "cut",
    "lost_confirm",
    "duplicate",
    "late_redelivery",
    "reorder",
    "clock_jump",
    "feed_drop",
    "scheduler_down",
    "placement_down",
    "broker_restart",
)
# What comes of them together, seen from outside.
EVERY_CONSEQUENCE = ("redelivered", "between_commit_and_redelivery", "handed_over")
# What hosts do by themselves, by their fault script.
OF_HOSTS = ("fails_to_build", "builds_slowly", "falls_silent", "comes_back_late", "dies", "changes")
