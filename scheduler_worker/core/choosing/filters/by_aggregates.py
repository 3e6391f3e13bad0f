"""The common part of filters that decide by the metadata of a host's aggregates."""

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any

from bus.messages.aggregates import Aggregate
from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests.spec import InstanceSpec


class ByAggregates(Filter):
    """A host's aggregates are judged once for each set of aggregates that hosts are in, and for each thing asked."""

    woken_by = (Change.AGGREGATES, Change.PROVIDERS)

    @abstractmethod
    def asked(self, hosts: Hosts, spec: InstanceSpec) -> Hashable:
        """The demands of the spec on metadata; None if every host passes."""

    @abstractmethod
    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        """Why a host in these aggregates does not pass; empty if it does."""

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        asked = self.asked(hosts, spec)
        if asked is None:
            return hosts.everyone()
        passed: Flags = hosts.by_aggregates(
            (self.name, asked), lambda aggregates: not self.why_not(aggregates, asked)
        )
        return passed

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        return self.why_not(host.aggregates, self.asked(host.hosts, spec))


def named(aggregates: tuple[Aggregate, ...]) -> str:
    return f"{'aggregates' if len(aggregates) > 1 else 'aggregate'} {', '.join(each.name for each in aggregates)}"
