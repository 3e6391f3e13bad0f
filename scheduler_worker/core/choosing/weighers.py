"""Which of the hosts that qualify are better? More room is, unless a multiplier turns it around."""

from placement_worker.core.candidates.columns import Ints
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.requests import InstanceSpec


class FreeAmount:
    """What is free of one class, from nothing to the most that any host has."""

    minimum = 0.0

    def __init__(self, name: str, resource: str, multiplier: float = 1.0) -> None:
        self.name = name
        self.resource = resource
        self.multiplier = multiplier

    def weigh(self, hosts: Hosts, _spec: InstanceSpec) -> Ints:
        return hosts.free(self.resource)
