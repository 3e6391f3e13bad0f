"""Messages in a cell about the modes of its hosts (hosts.py): orders of the API level; and how a host that was dead
tells which attempts it still has, until all that is not its cell's own is destroyed.
"""

from typing import Annotated

from msgspec import Meta

from bus.message import CellMessage, ProviderId
from bus.messages.build import InstanceId
from bus.messages.hosts import HostSetting
from bus.messages.placement import Attempt, Counter, Label, Value

ATTEMPTS_PER_MESSAGE_MAX = 2000


class SetHostInCell(CellMessage, frozen=True, tag="host.mode"):
    """The mode of a host, for the conductors of its cell. The setting with the highest number counts. With `must_clean` the
    host was dead: the cell says when nothing foreign is left on it.
    """

    host: ProviderId
    name: Label
    setting: HostSetting
    must_clean: bool = False


class CheckHost(CellMessage, frozen=True, tag="host.check"):
    """Order to a host: say what you have, after this instance. `number` is that of the host's setting."""

    host: ProviderId
    number: Counter
    after: InstanceId | None = None


class HeldAttempt(Value, frozen=True, array_like=True):
    """An attempt of an instance on a host."""

    instance: InstanceId
    attempt: Attempt


class HostHolds(CellMessage, frozen=True, tag="host.holds"):
    """A page of all attempts that a host has, in the order of their instances. `after` and `number` are those of the order,
    `next` those of the order for the next page; none on the last one. The conductor orders the host to destroy the attempts
    that are not its own any more.
    """

    host: ProviderId
    number: Counter
    attempts: Annotated[tuple[HeldAttempt, ...], Meta(max_length=ATTEMPTS_PER_MESSAGE_MAX)] = ()
    after: InstanceId | None = None
    next: InstanceId | None = None


class HostCleaned(CellMessage, frozen=True, tag="host.cleaned"):
    """Nothing foreign is left on this host, which was dead before the setting with this number."""

    host: ProviderId
    number: Counter
