"""The host has room: enough of each class is free, within the limits of its inventory, and each granular group finds a
provider.
"""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts, Searching
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.needs import Needs, needs_of
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.choosing.refusals.group_reasons import (
    shortfalls_of,
    shortfalls_of_compound,
    why_no_room,
)
from scheduler_worker.core.requests import InstanceSpec


class Capacity(Filter):
    name = "capacity"
    is_per_instance = True
    reads = Needs._fields
    woken_by = (Change.PROVIDERS, Change.USAGE)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed = hosts.everyone()
        for number, (resource, amount) in enumerate(spec.amounts):
            giving = hosts.giving(resource, amount)
            if hosts.search is Searching.LATER and (shared := hosts.may_share(resource, amount)) is not None:
                giving = giving | shared
            passed = passed & giving if number else giving
        if not hosts.some_are_searched(spec):
            return passed
        # A host with candidates has room; to search for room alone costs more.
        return hosts.decided(passed, needs_of(spec), by_room_alone=hosts.search is Searching.EACH)

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        if spec.groups:
            return why_no_room(host, needs_of(spec).of_room_alone())
        if host.is_compound:
            # Sharing providers have room for each class, and the host's own tree for none.
            return (
                shortfalls_of_compound(host, spec.amounts)
                or "all of it would be shared with it, and nothing its own"
            )
        return "; ".join(
            said
            for resource, amount in spec.amounts
            for said in shortfalls_of(resource, amount, host.bounds(resource), host.free(resource))
        )
