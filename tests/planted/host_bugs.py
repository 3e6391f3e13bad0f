"""Planted bugs in the modes of hosts."""

from contextlib import AbstractContextManager
from typing import Any

from cell_conductor import hosts
from cell_conductor.core import decide
from cell_conductor.core.rows import HostStates
from cell_conductor.hosts import HeardHosts
from scheduler_worker.hosts import ModeTeller
from tests.planted.replacing import replaced


def cleanups_of_the_dead_kept() -> AbstractContextManager[None]:
    """After a host was set dead, its cell goes on waiting for what it must clean up."""
    return replaced(decide, "_on_clean", _only_when_destroyed)


def _only_when_destroyed(real: Any) -> Any:
    def on_clean(transition: Any, attempt: int, host: Any) -> None:
        if not transition.hosts.is_dead(host):
            real(transition, attempt, host)

    return on_clean


def silence_not_noticed() -> AbstractContextManager[None]:
    """A conductor does not notice that a host of its cell is silent: a build there waits for the whole time of its attempt."""
    return replaced(HeardHosts, "silent", lambda _real: lambda _self: ())


def returned_host_not_asked() -> AbstractContextManager[None]:
    """A host that was dead is not asked what it has: it counts as clean."""

    def planted(_real: Any) -> Any:
        return lambda _rows, _host, _attempts, *, destroys_unknown: []  # noqa: ARG005 - as the real one

    return replaced(hosts, "foreign", planted)


def draining_alternate_taken() -> AbstractContextManager[None]:
    """A conductor takes the next alternate although its host is draining."""
    return replaced(
        HostStates,
        "why_not_next",
        lambda _real: lambda self, choice: self.why_lost(choice),
    )


def word_noted_and_not_sent() -> AbstractContextManager[None]:
    """A scheduler notes that a cell was told how a host is set, and tells it nothing."""

    def planted(_real: Any) -> Any:
        async def tell(self: Any) -> None:
            await self._note_told(list(self._registry.untold()))

        return tell

    return replaced(ModeTeller, "_tell", planted)
