"""The metrics of conductors."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from bus.measuring import Histogram, Metric, Readings
from bus.messages.build import InstanceId
from cell_conductor.core.decide import Decision
from cell_conductor.core.instance import Instance

_CELL = ("cell",)
PLACED = Metric(
    "moor_place_seconds",
    "histogram",
    "From the sending of the order to place an instance until a conductor of its cell works on it. Orders of one batch count as "
    "the first of them.",
    _CELL,
)
BOOT = Metric(
    "moor_boot_seconds",
    "histogram",
    "From the acceptance of a request to its instance being active, of every boot: the whole way through all workers.",
    _CELL,
)
HOST_BUILD = Metric(
    "moor_host_build_seconds",
    "histogram",
    "The part of that on the host: from the order to spawn or deploy until its answer, of the attempt that succeeded.",
    _CELL,
)
INSTANCES_ENDED = Metric(
    "moor_boots_ended",
    "counter",
    "Boots that ended in their cell, by `outcome`: `active`, or `error` when no alternate was left. One that finds no host "
    "reaches no cell (`moor_no_valid_host_total`).",
    ("cell", "outcome"),
)
ATTEMPTS_FAILED = Metric(
    "moor_attempts_failed",
    "counter",
    "Attempts on a host that failed; the next alternate is tried if there is one. `why`: `host` if the host failed or fell "
    "silent, `refused` if placement refused the claim there, or the host could not be used any more.",
    ("cell", "why"),
)
METRICS = (PLACED, BOOT, HOST_BUILD, INSTANCES_ENDED, ATTEMPTS_FAILED)


_ENDS = ("active", "error")


class BootTimes:
    """Counts how boots of a cell end, and how long they took. If a batch is decided anew after its transaction failed,
    it counts twice.
    """

    def __init__(self, cell: str) -> None:
        self._labels = (cell,)
        self._placed = Histogram(PLACED)
        self._whole = Histogram(BOOT)
        self._on_host = Histogram(HOST_BUILD)
        # Prometheus sees no growth of a counter that was not there before.
        self._outcomes = Counter(dict.fromkeys(_ENDS, 0))
        self._failed = Counter({"host": 0, "refused": 0})

    @property
    def readings(self) -> Readings:
        (cell,) = self._labels
        return (
            self._placed,
            self._whole,
            self._on_host,
            INSTANCES_ENDED.numbers({(cell, outcome): count for outcome, count in self._outcomes.items()}),
            ATTEMPTS_FAILED.numbers({(cell, why): count for why, count in self._failed.items()}),
        )

    def took(self, sent_at: datetime | None, now: datetime, instances: int) -> None:
        """Note that work on orders to place so many instances begins, of which the first was sent at this time."""
        if sent_at is not None:
            self._placed.observe((now - sent_at).total_seconds(), instances, self._labels)

    def note(self, rows: Mapping[InstanceId, Instance], decision: Decision, decided_at: datetime) -> None:
        """Note what one decision has changed. `rows` are those that were there before."""
        # A row takes the time of the decision itself only if the decision has changed its state.
        ended = [
            (before, row)
            for before, row in zip(decision.before, decision.rows, strict=True)
            if row.state in _ENDS
            and row.changed_at is decided_at
            and row.move is None
            and row.rebuild is None
        ]
        if ended:
            self._note_ended(ended, decided_at)
        for row in [row for row in decision.rows if row.failures]:
            if (known := rows.get(row.id)) is not None:
                for failure in row.failures[len(known.failures) :]:
                    self._failed["refused" if failure.is_refused else "host"] += 1

    def _note_ended(self, ended: Sequence[tuple[Instance, Instance]], decided_at: datetime) -> None:
        built = [(before, row.order) for before, row in ended if row.state == "active"]
        self._outcomes["active"] += len(built)
        self._outcomes["error"] += len(ended) - len(built)
        if not built:
            return
        self._whole.observe_each(
            [(decided_at - order.issued_at).total_seconds() for _, order in built if order is not None],
            self._labels,
        )
        self._on_host.observe_each(
            [
                (decided_at - before.changed_at).total_seconds()
                for before, order in built
                if before.state == "building" and order is not None
            ],
            self._labels,
        )
