"""The host has fewer members of the anti-affinity group than it may have."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec

# A reason names so many of the members on the host.
NAMED_MAX = 3


class AntiAffinity(Filter):
    name = "anti-affinity"
    is_per_instance = True
    reads = ("server_group",)
    woken_by = (Change.USAGE,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        group = spec.server_group
        if group is None or group.policy != "anti-affinity":
            return hosts.everyone()
        return hosts.members(group) < group.max_per_host

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        group = spec.server_group
        assert group is not None, "only members of a group are refused"
        there = host.members_count(group)
        members = ", ".join(map(str, host.members(group)[:NAMED_MAX])) or "chosen just now"
        return f"has {there} members of server group {group.id} (anti-affinity, at most {group.max_per_host}): {members}"
