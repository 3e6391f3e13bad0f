"""The modes of hosts (up, draining, down, dead): what sets or ends one, and why a host may not be used."""

from collections.abc import Callable
from datetime import datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

from msgspec import structs

from bus.messages.hosts import HostsReported, SetHost, SetHostInCell
from engine.hosts import DOWN, NODE, HostDescription, HostFacts, HostMode, HostSetting, HostState
from engine.inventories import ProviderId

NODES_ARE_NEVER_DEAD = "a bare-metal node cannot be set dead: Ironic knows what is on it. Set it down or draining, or set maintenance there"


def problem_of(host: HostState, order: SetHost) -> str:
    """Why the host cannot be set to the mode in this order; empty if it can."""
    return NODES_ARE_NEVER_DEAD if order.mode == "dead" and host.kind == NODE else ""


def why_unsure(host: HostState, order: SetHost, unheard: timedelta | None) -> str:
    """Why the host is not set dead by an operator who has not said that nothing runs there; empty if that need not be said.

    `unheard` is for how long the host has not been heard; None if it is silent.
    """
    if order.mode != "dead" or order.sure or unheard is None or host.setting.mode == "dead":
        return ""
    return (
        f"{host.name} was heard {unheard.total_seconds():.0f} s ago, so its instances may still run. `dead` says that nothing runs there and "
        "nothing will: what it still holds for others is released at once, and where its instances are evacuated, second copies run beside "
        "them. Switch it off first; or set it down, which waits for it"
    )


def with_mode(host: HostState, mode: HostMode, reason: str, by: str, now: datetime) -> HostState:
    """The host after it was set to this mode; unchanged if mode, reason and user are those it has. A host that was dead
    must clean up before it is used again, whatever it is set to next.
    """
    was = host.setting
    if (was.mode, was.reason, was.by) == (mode, reason, by):
        return host
    setting = HostSetting(mode=mode, reason=reason, by=by, at=now, number=was.number + 1)
    return structs.replace(host, setting=setting, must_clean=host.must_clean or mode == "dead")


def cleaned(host: HostState, number: int) -> HostState:
    """The host after its cell reported that it has cleaned up: no instance is left on it that belongs elsewhere.

    Unchanged if the report answers an earlier setting than the host's last one, or if the host is set dead.
    """
    if not host.must_clean or host.setting.mode == "dead" or host.setting.number != number:
        return host
    return structs.replace(host, must_clean=False)


def may_be_up(host: HostState) -> bool:
    """Does the host count as up while its heartbeats arrive?"""
    return host.setting.mode not in DOWN and not host.must_clean


def is_untold(host: HostState) -> bool:
    """Has the host's latest setting not been told to its cell yet?"""
    return host.told < host.setting.number


def may_be_forgotten(host: HostState) -> bool:
    """May the row of a host that does not exist any more be deleted? Not before its cell knows that nothing is set."""
    return host.setting.mode == "up" and not is_untold(host)


def without_setting(host: HostState, now: datetime) -> HostState | None:
    """The row of a host that does not exist any more; None if it is to be deleted.

    A host of the same id would be a new one. So first its cell is told that nothing is set any more, and a later report
    deletes the row.
    """
    return None if may_be_forgotten(host) else with_mode(host, "up", "", "", now)


def word_for_cell(host: HostState) -> SetHostInCell:
    return SetHostInCell(
        cell=host.cell, host=host.id, name=host.name, setting=host.setting, must_clean=host.must_clean
    )


# The state of a host after a report, or after another worker wrote its row.
#
# Nearly all reports tell only a new load: how many instances the host has, how many builds are under way there, and how many
# have just failed. Such a load is written beside the host's row, which then need not be read (`load_of`).


_LOADS = ("id", "instances", "io_ops", "failed_builds")
# All that a host tells of itself, but for its load.
_steady = attrgetter(*[each.name for each in structs.fields(HostDescription) if each.name not in _LOADS])


class HostLoad(NamedTuple):
    """The load of a host by a report that changes nothing else in its row, which has the sequence `row`. `epoch` and
    `sequence` are those of the report.
    """

    host: ProviderId
    row: int
    epoch: int
    sequence: int
    instances: int
    io_ops: int
    failed_builds: int

    @property
    def number(self) -> tuple[int, int]:
        return self.epoch, self.sequence


def load_of(
    row: HostState, facts: HostFacts, report: HostsReported, failed_builds_max: int
) -> HostLoad | None:
    """The load of the host with this row, if the report changes nothing else; otherwise None."""
    if 0 < failed_builds_max <= facts.failed_builds:
        # It may have to be set draining.
        return None
    if facts.is_gone or row.cell != report.cell or _steady(row) != _steady(facts):
        return None
    epoch, sequence = _number_of(facts, report)
    if (epoch, sequence) < (row.report_epoch, row.report_sequence):
        return None
    told = facts.instances, facts.io_ops, facts.failed_builds
    return HostLoad(row.id, row.sequence, epoch, sequence, *told)


def with_load(row: HostState, load: HostLoad) -> HostState:
    """The host's row with its load, unless the row is of a later report."""
    if load.number < (row.report_epoch, row.report_sequence):
        return row
    return structs.replace(
        row,
        instances=load.instances,
        io_ops=load.io_ops,
        failed_builds=load.failed_builds,
        report_epoch=load.epoch,
        report_sequence=load.sequence,
    )


def reported(
    host: HostState | None,
    facts: HostFacts,
    report: HostsReported,
    now: datetime,
    *,
    speaks_for: str | None = None,
    failed_builds_max: int = 0,
    placed_in: Callable[[ProviderId], str] = lambda _: "",
) -> HostState | None:
    """The host with these facts, or unchanged if a later report is known; None if the host belongs to another cell than
    the one that reports it.

    A node moves to another cell when its conductor group or shard changes. Only a sender that stands above cells
    (`speaks_for` is None) may report that: otherwise one cell could take the nodes of another.

    `placed_in` gives the cell that placement names for a host, empty if it has none. A cell that reports a host first
    cannot keep it from the cell whose it is: the row of the false report is replaced.

    A host on which `failed_builds_max` builds in a row have failed is set draining, and again by each further failure
    after an operator has set it up; 0: never.
    """
    may_move = host is not None and speaks_for is None and host.kind == facts.kind == NODE
    if host is None or (host.cell != report.cell == placed_in(host.id) and not may_move):
        # Its cell may remember settings of a host that was forgotten here: those of the new one have later numbers.
        number = int(now.timestamp()) if host is None else max(int(now.timestamp()), host.setting.number + 1)
        host = HostState(
            id=facts.id,
            name=facts.name,
            cell=report.cell,
            up=True,
            setting=HostSetting(number=number),
            told=number,
            sequence=0 if host is None else host.sequence,
        )
    if host.cell != report.cell and not may_move:
        return None
    epoch, sequence = _number_of(facts, report)
    if (epoch, sequence) < (host.report_epoch, host.report_sequence):
        return host
    if 0 < failed_builds_max <= facts.failed_builds and facts.failed_builds > host.failed_builds:
        reason = f"{facts.failed_builds} builds in a row failed (failed_builds_max is {failed_builds_max})"
        host = with_mode(host, "draining", reason, "", now) if host.setting.mode == "up" else host
    if host.cell != report.cell:
        # Its new cell has been told nothing.
        host = structs.replace(host, told=0)
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
        supports=facts.supports,
        capabilities=facts.capabilities,
        failed_builds=facts.failed_builds,
        report_refused=facts.report_refused,
    )


def _number_of(facts: HostFacts, report: HostsReported) -> tuple[int, int]:
    if facts.epoch or facts.sequence:
        return facts.epoch, facts.sequence
    return report.epoch, report.sequence


def rewritten(known: HostState, row: HostState) -> HostState:
    """The host after another worker wrote its row: that row, or, if this process has heard a later report, the reported
    facts with the row's setting.
    """
    if (row.report_epoch, row.report_sequence) >= (known.report_epoch, known.report_sequence):
        return row
    return structs.replace(
        known,
        setting=row.setting,
        told=row.told,
        must_clean=row.must_clean,
        silent_since=row.silent_since,
        sequence=row.sequence,
    )


def is_news(host: HostState | None, now: HostState) -> bool:
    """Does `now` differ from the known state in more than `up` and the time when the host was heard?"""
    return host is None or structs.replace(host, up=now.up, heard_at=now.heard_at) != now
