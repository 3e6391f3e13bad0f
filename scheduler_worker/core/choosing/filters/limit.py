"""The host has fewer instances, or fewer builds and the like under way, than it may have."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.aggregates.metadata import UNLIMITED, least_of
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class LimitFilter(Filter):
    is_per_instance = True
    woken_by = (Change.FACTS, Change.USAGE, Change.AGGREGATES, Change.PROVIDERS)

    def __init__(self, name: str, column: str, words: str, key: str, maximum: int) -> None:
        """`column` is what is counted on a host, for instance its instances, and `maximum` the most that it may have: 0 means no
        limit. Aggregates set another limit for their hosts by the metadata key `key`.
        """
        self.name = name
        self._column = column
        self._words = words
        self._key = key
        self._maximum = maximum

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        if not self._maximum and self._key not in hosts.metadata.keys:
            return hosts.everyone()
        return hosts.have_fewer(self._column, hosts.number(self._key, self._maximum or UNLIMITED))

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        maximum = least_of(self._key, host.aggregates, self._maximum)
        return f"has {host.busy(self._column)} {self._words}, at most {maximum:g}"
