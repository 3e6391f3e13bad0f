"""A host with more members of a soft-affinity group is better; with soft anti-affinity, a host with fewer."""

from placement_worker.core.candidates.columns import Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Weigher
from scheduler_worker.core.requests import InstanceSpec


class SoftGroup(Weigher):
    """One for each of the two policies, so that each has a multiplier of its own."""

    reads = ("server_group",)
    woken_by = (Change.USAGE,)

    def __init__(self, policy: str, multiplier: float = 1.0) -> None:
        self.name = policy
        self.multiplier = multiplier
        self._sign = 1 if policy == "soft-affinity" else -1

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Ints | None:
        group = spec.server_group
        if group is None or group.policy != self.name or not hosts.has_members(group):
            return None
        return self._sign * hosts.members(group)
