"""The host has room: of each class enough is free, within the bounds of its inventory; and for each granular group."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.group_reasons import shortfalls_of, shortfalls_of_compound, why_no_room
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.needs import needs_of
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class Capacity(Filter):
    name = "capacity"
    is_per_instance = True
    reads = ("amounts", "required", "forbidden", "preferred", "groups", "isolates", "same_subtree")
    woken_by = (Change.PROVIDERS, Change.USAGE)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed = hosts.everyone()
        for resource, amount in spec.amounts:
            passed = passed & (hosts.free(resource) >= amount) & hosts.within_bounds(resource, amount)
        return hosts.decided(passed, needs_of(spec).of_room_alone())

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        if spec.groups:
            return why_no_room(hosts, needs_of(spec).of_room_alone(), at)
        if hosts.is_compound(at):
            # Sharing providers have room for each class, and the host's own tree for none.
            return (
                shortfalls_of_compound(hosts, spec.amounts, at)
                or "all of it would be shared with it, and nothing its own"
            )
        return "; ".join(
            said
            for resource, amount in spec.amounts
            for said in shortfalls_of(
                resource, amount, hosts.bounds(resource, at), int(hosts.free(resource)[at])
            )
        )
