"""Filters that a flag of the host decides alone: they ask nothing of the request."""

from collections.abc import Callable

from bus.messages.hosts import HostState
from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.host_modes import why_down, why_not_enabled
from scheduler_worker.core.picture.columns import PictureColumns
from scheduler_worker.core.requests import InstanceSpec


class Flagged(Filter):
    def __init__(
        self,
        name: str,
        column: Callable[[PictureColumns], Flags],
        why_not: Callable[[OneHost], str],
        *woken_by: Change,
    ) -> None:
        self.name = name
        self.woken_by = woken_by
        self._column = column
        self._why_not = why_not

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.of(self._column(hosts.columns))

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        return self._why_not(host)


def _told(why: Callable[[HostState], str], otherwise: str) -> Callable[[OneHost], str]:
    """A function that says why a host does not pass: what `why` says of its state in the host registry, or the text
    `otherwise` if that is nothing.
    """

    def why_not(host: OneHost) -> str:
        state = host.registered
        return (why(state) if state else "") or otherwise

    return why_not


# In the order of the funnel.
FLAGGED = (
    Flagged(
        "registered",
        lambda columns: columns.registered,
        lambda _: "no report of it has reached the registry yet",
        Change.FACTS,
    ),
    Flagged(
        "up",
        lambda columns: columns.up,
        _told(why_down, "is down: its heartbeats have stopped"),
        Change.FACTS,
        Change.LIFE,
    ),
    Flagged(
        "enabled",
        lambda columns: columns.enabled,
        _told(why_not_enabled, "its mode is not known yet"),
        Change.ENABLED,
        Change.FACTS,
    ),
    Flagged(
        "inventory",
        lambda columns: columns.provided,
        lambda _: "placement has no provider of it",
        Change.PROVIDERS,
    ),
    Flagged(
        "cell",
        lambda columns: columns.consistent,
        lambda host: f"placement has it in cell {host.cell!r}, the registry in another one",
        Change.FACTS,
        Change.PROVIDERS,
    ),
)
