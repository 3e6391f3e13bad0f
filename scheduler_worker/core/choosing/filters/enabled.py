"""No operator has disabled the host."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class Enabled(Filter):
    name = "enabled"
    woken_by = (Change.ENABLED, Change.FACTS)

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.of(hosts.columns.enabled)

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        return f"is disabled: {hosts.disabled_reason(at) or 'no reason given'}"
