"""Messages in a cell about the modes of its hosts (hosts.py).

The API level tells the cell each new mode. A host that was dead or silent tells the conductors which attempts of instances it
still has. They have it destroy all attempts that the cell no longer counts on.
"""

from typing import Annotated

from msgspec import Meta

from bus.message import CellMessage, ProviderId
from bus.messages.build import InstanceId
from bus.messages.hosts import HostSetting
from bus.messages.placement import Attempt, Counter, Label, Value

ATTEMPTS_PER_MESSAGE_MAX = 2000


class SetHostInCell(CellMessage, frozen=True, tag="host.mode"):
    """Tells the conductors of a cell the mode of a host. The setting with the highest number counts.

    With `must_clean` the host was dead. The cell reports when the host has destroyed everything that the cell no longer
    counts on (`host.cleaned`).
    """

    host: ProviderId
    name: Label
    setting: HostSetting
    must_clean: bool = False


class CheckHost(CellMessage, frozen=True, tag="host.check"):
    """Order to a host: report a page of the attempts of instances that it has, from behind the instance `after`.

    `number` is that of the `HostSetting` by which the host's mode was set; the answer repeats it.
    """

    host: ProviderId
    number: Counter
    after: InstanceId | None = None


class HeldAttempt(Value, frozen=True, array_like=True):
    """An attempt that a host has: an entry in the list that it sends to the conductor."""

    instance: InstanceId
    attempt: Attempt


class HostHolds(CellMessage, frozen=True, tag="host.holds"):
    """A page of all attempts that a host has, in the order of their instances. It answers a `host.check`.

    A host also sends the first page without being asked, when answers of it may have been lost: when its compute starts, and
    when it can send again after it could not. `number` is 0 then.

    `after` and `number` repeat those of the order. `next` is the `after` for the next page, null on the last page. The
    conductor orders the host to destroy the attempts that the cell no longer counts on.
    """

    host: ProviderId
    number: Counter
    attempts: Annotated[tuple[HeldAttempt, ...], Meta(max_length=ATTEMPTS_PER_MESSAGE_MAX)] = ()
    after: InstanceId | None = None
    next: InstanceId | None = None


class HostsNotHere(CellMessage, frozen=True, tag="host.not_here"):
    """The compute of the cell does not have these hosts, though there were orders for them: it may have been started with fewer.

    They count as silent until they are heard, and what runs there stays theirs. No order for them was obeyed.
    """

    hosts: Annotated[tuple[ProviderId, ...], Meta(max_length=ATTEMPTS_PER_MESSAGE_MAX)]


class HostCleaned(CellMessage, frozen=True, tag="host.cleaned"):
    """A host that was dead before the setting with this number has destroyed all attempts that its cell no longer has."""

    host: ProviderId
    number: Counter
