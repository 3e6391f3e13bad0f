"""The host is in the zone that is asked for."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class AvailabilityZone(Filter):
    name = "availability zone"
    reads = ("availability_zone",)
    woken_by = (Change.FACTS, Change.AGGREGATES, Change.PROVIDERS)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        return hosts.in_zone(spec.availability_zone) if spec.availability_zone else hosts.everyone()

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        return f"asked {spec.availability_zone!r}, is in {host.zone!r}"
