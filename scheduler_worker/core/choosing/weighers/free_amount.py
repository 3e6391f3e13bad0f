"""A host with more room is better, unless the multiplier is negative."""

from placement_worker.core.candidates.columns import Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Weigher
from scheduler_worker.core.requests import InstanceSpec


class FreeAmount(Weigher):
    """The free amount of one class, on a scale from 0 to the most that any host has."""

    minimum = 0.0
    woken_by = (Change.PROVIDERS, Change.USAGE)

    def __init__(self, name: str, resource: str, multiplier: float = 1.0) -> None:
        self.name = name
        self.resource = resource
        self.multiplier = multiplier

    def weigh(self, hosts: Hosts, _spec: InstanceSpec) -> Ints | None:
        return hosts.free(self.resource) if self.resource in hosts.columns.stocks else None
