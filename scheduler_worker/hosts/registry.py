"""Which hosts there are, and are they up: the rows, what was heard since, and what the picture is told of both.

A heartbeat is remembered and not written. Rows that were read at start are believed for one period: whoever is alive
has been heard of by then.
"""

import itertools
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import structs

from bus.message import ProviderId
from bus.messages.hosts import NODE, HostFacts, HostsReported, HostState

log = logging.getLogger(__name__)


class KnowsHosts(Protocol):
    """A picture, as far as hosts go."""

    def know(self, hosts: Iterable[HostState]) -> None: ...

    def unknow(self, hosts: Iterable[ProviderId]) -> None: ...


def reported(
    host: HostState | None,
    facts: HostFacts,
    report: HostsReported,
    now: datetime,
    *,
    speaks_for: str | None = None,
) -> HostState | None:
    """The host with these facts, or as it was if it has said something later; None if it is another cell's, who may not
    speak of it.

    A node goes to another cell when its conductor group or shard changes. Only a sender that stands above cells
    (`speaks_for` is None) may say so: else one cell could take the nodes of another.
    """
    if host is None:
        host = HostState(id=facts.id, name=facts.name, cell=report.cell, up=True, enabled=True)
    may_move = speaks_for is None and host.kind == facts.kind == NODE
    if host.cell != report.cell and not may_move:
        return None
    epoch, sequence = report.epoch, report.sequence
    if facts.epoch or facts.sequence:
        epoch, sequence = facts.epoch, facts.sequence
    if (epoch, sequence) < (host.report_epoch, host.report_sequence):
        return host
    return structs.replace(
        host,
        name=facts.name,
        cell=report.cell,
        up=True,
        instances=facts.instances,
        io_ops=facts.io_ops,
        availability_zone=facts.availability_zone,
        hypervisor_type=facts.hypervisor_type,
        hypervisor_version=facts.hypervisor_version,
        heard_at=now,
        report_epoch=epoch,
        report_sequence=sequence,
        kind=facts.kind,
        projects=facts.projects,
    )


def rewritten(known: HostState, row: HostState) -> HostState:
    """The host as its row was written, but for what it has said itself since."""
    if (row.report_epoch, row.report_sequence) >= (known.report_epoch, known.report_sequence):
        return row
    return structs.replace(
        known, enabled=row.enabled, disabled_reason=row.disabled_reason, sequence=row.sequence
    )


def is_news(host: HostState | None, now: HostState) -> bool:
    """Does it say more than that the host is alive?"""
    return host is None or structs.replace(host, up=now.up, heard_at=now.heard_at) != now


class HostRegistry:
    """All hosts as this process knows them."""

    def __init__(self, picture: KnowsHosts, down_after: timedelta, clock: Callable[[], datetime]) -> None:
        self._picture = picture
        self._down_after = down_after
        self._clock = clock
        self._hosts: dict[ProviderId, HostState] = {}
        self._heard: dict[ProviderId, datetime] = {}
        # The picture takes what is later: later in this process, since a row does not tell who is up.
        self._told = itertools.count(1)

    def learn(self, rows: Iterable[HostState]) -> None:
        """As they are written: at start, by this worker, or by another."""
        changed = []
        now = self._clock()
        for row in rows:
            known = self._hosts.get(row.id)
            if known is None or row.sequence > known.sequence:
                self._heard.setdefault(row.id, now)
                self._hosts[row.id] = row if known is None else rewritten(known, row)
                changed.append(self._hosts[row.id])
        self._tell(changed, now)

    def hear_facts(self, report: HostsReported, speaks_for: str | None = None) -> None:
        """What all workers hear at once, and one of them writes. `speaks_for` is the only cell that its sender may name."""
        now = self._clock()
        changed = []
        for each in report.hosts:
            known = self._hosts.get(each.id)
            host = reported(known, each, report, now, speaks_for=speaks_for)
            if host is None:
                log.warning("cell %s speaks of host %s, which is another cell's", report.cell, each.name)
                continue
            if host is known:
                continue
            self._hosts[each.id] = host
            self._heard[each.id] = now
            changed.append(host)
        self._tell(changed, now)

    def hear_beats(self, cell: str, hosts: Iterable[ProviderId], speaks_for: str | None = None) -> None:
        """A node's daemon may not know yet that the node went to another cell."""
        now = self._clock()
        back = []
        for each in hosts:
            host = self._hosts.get(each)
            if host is None or (host.cell != cell and not (speaks_for is None and host.kind == NODE)):
                continue
            self._heard[each] = now
            if not host.up:
                back.append(host)
        self._tell(back, now)

    def get(self, host: ProviderId) -> HostState | None:
        return self._hosts.get(host)

    def disabled(self) -> list[ProviderId]:
        """As far as is known here: another worker may have written otherwise."""
        return [host.id for host in self._hosts.values() if not host.enabled]

    def unheard_since(self, before: datetime) -> list[HostState]:
        """Those of whom this process has heard nothing since. What it read at start counts as heard then."""
        return [host for host in self._hosts.values() if self._heard[host.id] < before]

    def forget(self, hosts: Iterable[ProviderId]) -> None:
        """Their rows are gone. Whoever reports again is a new host."""
        going = [host for host in hosts if self._hosts.pop(host, None) is not None]
        for host in going:
            self._heard.pop(host, None)
        self._picture.unknow(going)

    def look(self) -> None:
        """Who was not heard of for too long?"""
        now = self._clock()
        self._tell([host for host in self._hosts.values() if host.up and not self._is_up(host.id, now)], now)

    def as_heard(self, row: HostState) -> HostState:
        """A row of the store, with what only this process knows."""
        heard = self._heard.get(row.id)
        return structs.replace(row, up=self._is_up(row.id, self._clock()), heard_at=heard or row.heard_at)

    def _is_up(self, host: ProviderId, now: datetime) -> bool:
        heard = self._heard.get(host)
        return heard is not None and now - heard < self._down_after

    def _tell(self, changed: Iterable[HostState], now: datetime) -> None:
        told = []
        for host in changed:
            known = self._hosts[host.id] = structs.replace(host, up=self._is_up(host.id, now))
            told.append(structs.replace(known, sequence=next(self._told)))
        if told:
            self._picture.know(told)
