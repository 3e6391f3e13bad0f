"""How long requests to build waited, and how they and those to move ended here: for the metrics."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from bus.measuring import Histogram, Labels, Readings, limited
from bus.messages.build import NoValidHost
from scheduler_worker.metrics import ACCEPTED, NO_VALID_HOST, REQUESTS

NO_HOST_AT_ALL = "(none)"


class RequestOutcomes:
    def __init__(self, filters: Sequence[str] = ()) -> None:
        """`filters` are those that may remove hosts: Prometheus sees no growth of a counter that was not there before."""
        self._requests = Counter({"accepted": 0, "rejected": 0})
        self._waited = Histogram(ACCEPTED)
        self._last_filters = Counter(dict.fromkeys((*filters, NO_HOST_AT_ALL), 0))

    @property
    def readings(self) -> Readings:
        shown = limited([*self._last_filters])
        by_filter = Counter[Labels]()
        for name, count in self._last_filters.items():
            by_filter[(shown[name],)] += count
        return (
            self._waited,
            REQUESTS.numbers({(outcome,): count for outcome, count in self._requests.items()}),
            NO_VALID_HOST.numbers(by_filter),
        )

    def count(self, *, invalid: int, builds: Sequence[bool]) -> None:
        """Count a batch of requests: so many that were refused before they were written, and of the others, whether each
        was accepted.
        """
        accepted = sum(builds)
        self._requests["accepted"] += accepted
        self._requests["rejected"] += invalid + len(builds) - accepted

    def took(self, sent_at: datetime | None, now: datetime, instances: int) -> None:
        """Note that work on requests for so many instances begins, of which the first was sent at this time."""
        if sent_at is not None and instances:
            self._waited.observe((now - sent_at).total_seconds(), instances)

    def no_host(self, found: NoValidHost) -> None:
        self._last_filters[last_filter(found)] += 1


def last_filter(found: NoValidHost) -> str:
    """The filter that removed the last host."""
    removing = [step.step for step in found.steps if step.removed]
    return removing[-1] if removing else NO_HOST_AT_ALL
