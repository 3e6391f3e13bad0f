"""The host has the members of the affinity group, if the group has any."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class Affinity(Filter):
    name = "affinity"
    reads = ("server_group",)
    woken_by = (Change.USAGE,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        group = spec.server_group
        if group is None or group.policy != "affinity" or not hosts.has_members(group):
            return hosts.everyone()
        return hosts.members(group) > 0

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        assert spec.server_group is not None, "only members of a group are refused"
        first = host.first_member(spec.server_group)
        where = "is on another host" if first is None else f"is with instance {first[0]} on {first[1]}"
        return f"server group {spec.server_group.id} (affinity) {where}"
