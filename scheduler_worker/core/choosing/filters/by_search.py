"""Two filters by the result of a search of compound hosts. `search` removes a host whose search was cut, so that nobody
knows whether it has room. `ways` removes a host of which plugins allow none of the ways that were found
(ways/judge.py).
"""

from collections.abc import Callable

import numpy as np

from placement_worker.core.candidates.columns import Flags, Ints
from scheduler_worker.core.choosing.compound.compounds import Found
from scheduler_worker.core.choosing.hosts.host_columns import Hosts, Searching
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.needs import Needs, needs_of
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class BySearch(Filter):
    reads = Needs._fields
    woken_by = (Change.PROVIDERS, Change.USAGE)

    def __init__(self, name: str, against: Callable[[Found], Ints], words: str) -> None:
        """`against` picks a column of the search's result; the filter removes the hosts whose number there is not 0.
        `words` is the reason, with a place for that number.
        """
        self.name = name
        self._against = against
        self._words = words

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if hosts.search is Searching.LATER or not hosts.some_are_searched(spec):
            return hosts.everyone()
        return np.equal(hosts.of(self._against(hosts.found(needs_of(spec)))), 0)

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        return self._words.format(self._against(host.hosts.found(needs_of(spec)))[host.row])


CUT = BySearch(
    "search",
    lambda found: found.cut,
    "its search was cut after {} steps: it may have what is asked, to find out would cost too much",
)
STRUCK = BySearch(
    "ways",
    lambda found: found.struck,
    "has room, but plugins allow none of the ways to take it that were found, {} in all",
)
