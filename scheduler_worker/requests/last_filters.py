"""Which filter removed the last host of a request to build or to move that found none: for the metrics."""

from collections import Counter
from collections.abc import Sequence

from bus.measuring import Labels, Readings, limited
from bus.messages.build import NoValidHost
from scheduler_worker.metrics import NO_VALID_HOST

NO_HOST_AT_ALL = "(none)"


class LastFilters:
    def __init__(self, filters: Sequence[str] = ()) -> None:
        """`filters` are those that may remove hosts: Prometheus sees no growth of a counter that was not there before."""
        self._counts = Counter(dict.fromkeys((*filters, NO_HOST_AT_ALL), 0))

    @property
    def readings(self) -> Readings:
        shown = limited([*self._counts])
        by_filter = Counter[Labels]()
        for name, count in self._counts.items():
            by_filter[(shown[name],)] += count
        return (NO_VALID_HOST.numbers(by_filter),)

    def no_host(self, found: NoValidHost) -> None:
        self._counts[last_filter(found)] += 1


def last_filter(found: NoValidHost) -> str:
    """The filter that removed the last host."""
    removing = [step.step for step in found.steps if step.removed]
    return removing[-1] if removing else NO_HOST_AT_ALL
