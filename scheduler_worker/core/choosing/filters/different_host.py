"""When the request was read, the host had none of the instances that the request wants to be apart from."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests.spec import InstanceSpec


class DifferentHost(Filter):
    name = "different host"
    reads = ("different_hosts",)
    woken_by = (Change.FACTS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        return ~hosts.named(spec.different_hosts) if spec.different_hosts else hosts.everyone()

    def reason(self, _host: OneHost, _spec: InstanceSpec) -> str:
        return "has an instance that the request wants to be apart from"
