"""The modes of hosts (up, draining, down, dead): what sets or ends one, and why a host may not be used."""

from datetime import datetime, timedelta

from msgspec import structs

from bus.messages.host_modes import SetHostInCell
from bus.messages.hosts import NODE, HostMode, HostSetting, HostState, SetHost

# Modes in which a host counts as down, whether its heartbeats arrive or not.
DOWN = ("down", "dead")
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


def why_down(host: HostState) -> str:
    """Why the host counts as down even if its heartbeats arrive; empty if only the heartbeats count."""
    if host.setting.mode in DOWN:
        return ("is dead" if host.setting.mode == "dead" else "is set down") + _because(host)
    return "was dead, and has not confirmed yet that it has cleaned up" if host.must_clean else ""


def why_not_enabled(host: HostState) -> str:
    """Why nothing new is built on the host; empty if that is allowed."""
    if host.setting.mode == "draining":
        return "is draining" + _because(host)
    return why_down(host) if host.setting.mode in DOWN else ""


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


def _because(host: HostState) -> str:
    return f": {host.setting.reason or 'no reason given'}"
