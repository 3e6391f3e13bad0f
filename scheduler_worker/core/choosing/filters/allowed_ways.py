"""Plugins have left the host at least one way to serve the request (ways/judge.py)."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.needs import needs_of
from scheduler_worker.core.choosing.plugins import Filter
from scheduler_worker.core.requests import InstanceSpec


class AllowedWays(Filter):
    name = "ways"
    reads = ("amounts", "required", "forbidden", "preferred", "groups", "isolates", "same_subtree")

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if hosts.before_search or not hosts.some_are_searched(spec):
            return hosts.everyone()
        struck = hosts.struck(needs_of(spec))
        return hosts.everyone() if struck is None else struck == 0

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        struck = hosts.struck(needs_of(spec))
        assert struck is not None, "the host was searched"
        return f"has room, but plugins allow none of the ways to take it that were found, {struck[at]} in all"
