"""A host with more of a number that hosts report is better, unless the multiplier is negative.

This scheduler's own choices are not counted as builds under way (`io_ops`): their amounts are no longer free, which weighs
enough, and a soft-affinity group would be driven apart.
"""

from placement_worker.core.candidates.columns import Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Weigher
from scheduler_worker.core.requests.spec import InstanceSpec


class ReportedWeight(Weigher):
    woken_by = (Change.FACTS,)

    def __init__(
        self, name: str, column: str, multiplier: float, *, minimum: float | None = None, less: bool = False
    ) -> None:
        """Weigh hosts by one of the columns that they report. With `less`, a host with a lower value is better."""
        self.name = name
        self.multiplier = multiplier
        self.minimum = minimum
        self._column = column
        self._less = less

    def weigh(self, hosts: Hosts, _spec: InstanceSpec) -> Ints | None:
        if not hosts.differ_in(self._column):
            return None
        reported: Ints = hosts.of(getattr(hosts.columns, self._column))
        return -reported if self._less else reported
