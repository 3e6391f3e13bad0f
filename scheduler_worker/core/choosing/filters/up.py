"""The host has sent a heartbeat lately."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class Up(Filter):
    name = "up"
    woken_by = (Change.FACTS, Change.LIFE)

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.of(hosts.columns.up)

    def reason(self, _hosts: Hosts, _spec: InstanceSpec, _at: int) -> str:
        return "is down: its heartbeats have stopped"
