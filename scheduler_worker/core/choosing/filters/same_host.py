"""When the request was read, the host had one of the instances that the request wants to be together with."""

import numpy as np

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests.spec import InstanceSpec


class SameHost(Filter):
    name = "same host"
    reads = ("same_hosts",)
    woken_by = (Change.FACTS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if spec.same_hosts is None:
            return np.zeros(len(hosts), dtype=np.bool_)
        return hosts.named(spec.same_hosts) if spec.same_hosts else hosts.everyone()

    def reason(self, _host: OneHost, spec: InstanceSpec) -> str:
        if spec.same_hosts is None:
            return "the instances to be together with have no host"
        return f"asked the host of another instance: {', '.join(spec.same_hosts)}"
