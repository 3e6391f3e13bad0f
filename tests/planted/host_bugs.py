"""Planted bugs in the modes of hosts."""

from typing import Any

from cell_conductor import hosts
from cell_conductor.core import decide
from cell_conductor.core.rows import HostStates
from cell_conductor.hosts import HeardHosts
from scheduler_worker.hosts import ModeTeller
from tests.planted.replacing import planted, planted_by


# After a host was set dead, its cell goes on waiting for what it must clean up.
@planted("the cleanups of a dead host kept", decide, "_on_clean", world="host modes")
def cleanups_of_the_dead_kept(real: Any, transition: Any, attempt: int, host: Any) -> None:
    if not transition.hosts.is_dead(host):
        real(transition, attempt, host)


# A conductor does not notice that a host of its cell is silent: a build there waits for the whole time of its attempt.
planted_by("the silence of hosts not noticed", HeardHosts, "silent", world="host modes")(
    lambda _real: lambda _self: ()
)


# A host that was dead is not asked what it has: it counts as clean.
@planted_by("a returned host not asked what it has", hosts, "foreign", world="host modes")
def returned_host_not_asked(_real: Any) -> Any:
    return lambda _rows, _host, _attempts, *, destroys_unknown: []


# A conductor takes the next alternate although its host is draining.
planted_by("a draining alternate taken", HostStates, "why_not_next", world="host modes")(
    lambda _real: lambda self, choice: self.why_lost(choice)
)


# A scheduler notes that a cell was told how a host is set, and tells it nothing.
@planted("a mode noted as told and not sent", ModeTeller, "_tell", world="host modes")
async def word_noted_and_not_sent(_real: Any, self: Any) -> None:
    await self._note_told(list(self._registry.untold()))
