"""A conductor's knowledge of the cell's hosts: the modes that operators have set, and which hosts are silent.

A host is lost if it is silent, or set down or dead. Attempts on it end at once and take their alternates. Bare-metal
nodes are never lost by silence: Ironic works on while their daemons are away. After `dead` it is certain that nothing
runs on a host, so nobody waits for it to clean up.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime

from msgspec import Struct

from bus.messages.hosts import HeldAttempt, SetHostInCell
from cell_conductor.core.instance import Instance
from engine.flavors import InstanceId
from engine.hosts import NODE, HostMode
from engine.inventories import Choice, ProviderId


class CellHost(Struct, frozen=True):
    """A host whose mode an operator has set. `word` is the last order to set it; each order has a number.

    `cleaned` is the number of the order after which the host was found to have no attempts but those that the cell
    counts on.
    """

    word: SetHostInCell
    cleaned: int = 0

    @property
    def mode(self) -> HostMode:
        return self.word.setting.mode

    @property
    def must_clean(self) -> bool:
        """Must the host still destroy attempts that are not its own, before it may be used again?"""
        return self.mode == "dead" or (self.word.must_clean and self.cleaned < self.word.setting.number)

    def is_cleaned_by(self, number: int) -> bool:
        """Is the host clean after it has listed, for the order with this number, that it has nothing but its own?

        Not if it was set again since, or lists what it has without being asked (0): it is asked again. Repeated lists clean it
        again, since the event that told so may have been lost.
        """
        return self.mode != "dead" and self.word.must_clean and self.word.setting.number == number


class HeardHost(Struct, frozen=True):
    """A host that some conductor of the cell has heard. `silent_since` is when a conductor found it silent; None if it was
    heard since.
    """

    id: ProviderId
    silent_since: datetime | None = None


class HostStates(Struct, frozen=True):
    """The hosts whose mode was set, and the hosts that are silent.

    Both have the hosts' ids as integers: each boot looks its host up, and Python computes the hash of a UUID at each lookup.
    """

    set: Mapping[int, CellHost] = {}
    silent: AbstractSet[int] = frozenset()

    def is_dead(self, host: ProviderId) -> bool:
        known = self.set.get(host.int)
        return known is not None and known.mode == "dead"

    def why_lost(self, host: Choice) -> str:
        """Why attempts on this host end, if the host is lost: an operator set it down or dead, or its heartbeats have
        stopped. Empty if it is not lost.
        """
        known = self.set.get(host.share.host.int)
        if known is not None and known.mode in ("down", "dead"):
            return ("the host is dead" if known.mode == "dead" else "the host is set down") + _because(known)
        is_silent = host.share.host.int in self.silent and host.kind != NODE
        return "the host's heartbeats have stopped" if is_silent else ""

    def why_not_next(self, choice: Choice) -> str:
        """Why this alternate is passed over; empty if it may be tried."""
        known = self.set.get(choice.share.host.int)
        if known is not None and known.mode == "draining":
            return "the host is draining" + _because(known)
        if known is not None and known.mode == "up" and known.must_clean:
            return "the host was dead, and has not cleaned up yet"
        return self.why_lost(choice)

    def lost(self) -> frozenset[int]:
        """The hosts that are silent, or set down or dead. When a host becomes one of these, the rows that wait for it are
        looked at.
        """
        return frozenset(
            {host for host, known in self.set.items() if known.mode in ("down", "dead")} | self.silent
        )

    def dead(self) -> frozenset[int]:
        return frozenset({host for host, known in self.set.items() if known.mode == "dead"})

    def with_modes(self, of: Iterable[ProviderId], read: Mapping[ProviderId, CellHost]) -> "HostStates":
        """With the modes of these hosts as they were just read; none was set for a host that is not among those."""
        old = {each.int for each in of}
        modes = {host: known for host, known in self.set.items() if host not in old}
        return HostStates(modes | {host.int: known for host, known in read.items()}, self.silent)


ALL_UP = HostStates()


def _because(known: CellHost) -> str:
    return f": {known.word.setting.reason}" if known.word.setting.reason else ""


def newer(known: CellHost | None, word: SetHostInCell) -> CellHost | None:
    """The host after this order to set its mode; None if an equal or later order is known already."""
    if known is not None and known.word.setting.number >= word.setting.number:
        return None
    return CellHost(word)


def concerns(row: Instance, hosts: HostStates) -> bool:
    """Does the row wait for a host that is lost, so that the conductor must act on it?

    That is the host of the row's next step, if it is silent, down or dead. It is also a host that must still destroy
    something, but only if it is dead.
    """
    host = awaited(row)
    if host is not None and hosts.why_lost(host):
        return True
    return any(hosts.is_dead(each.host) for each in row.cleanups)


def hosts_of(rows: Iterable[Instance], *, next_ones: bool = False) -> set[ProviderId]:
    """The hosts on which these instances have something, or may have left something; also the `next_ones`, if wanted."""
    named: set[ProviderId] = set()
    for row in rows:
        choices = (row.host, row.moving.source if row.moving is not None else None)
        named |= {each.share.host for each in choices if each is not None}
        named |= {each.host for each in row.cleanups}
        if next_ones:
            named |= {each.share.host for each in row.alternates}
    return named


def awaited(row: Instance) -> Choice | None:
    """The host that must do the next step of a build, a rebuild or a move, and is given up if it is lost.

    None if the row waits for no such host. The source of a move that is to run the instance again is no such host: the
    row waits for it even while it is lost.
    """
    if row.state in ("building", "rebuilding"):
        return row.host
    if row.state != "moving" or row.moving is None:
        return None
    match row.moving.step:
        case "stopping":
            return row.moving.source
        case "receiving" | "leaving":
            return row.host
        case _:
            return None


def number_of(host: CellHost | None) -> int:
    """The number of the setting that counts for this host; 0 if its mode was never set."""
    return 0 if host is None else host.word.setting.number


def foreign(
    rows: Mapping[InstanceId, Instance],
    host: ProviderId,
    attempts: Iterable[HeldAttempt],
    *,
    destroys_unknown: bool,
) -> list[HeldAttempt]:
    """The attempts on this host that are not its own any more: the instance is gone, or elsewhere.

    Without `destroys_unknown`, attempts that the cell does not know to have ordered are not among them: its database was
    restored, and they may be all that there is of an instance. The audit names these, and a person decides.
    """
    found: list[HeldAttempt] = []
    for each in attempts:
        row = rows.get(each.instance)
        if row is None or each.attempt > row.last_attempt:
            if destroys_unknown:
                found.append(each)
        elif not (row.is_current(each.attempt, host) or _is_source(row, each.attempt, host)):
            found.append(each)
    return found


def _is_source(row: Instance, attempt: int, host: ProviderId) -> bool:
    """Is this the host from which the instance moves, and to which it may come back?"""
    moving = row.moving
    return moving is not None and (moving.source_attempt, moving.source.share.host) == (attempt, host)
