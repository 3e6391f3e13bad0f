"""Which claims hold resources although no row of an instance has their id? Pure.

Migrations and cleanups have ids of their own. Whether an instance needs one of them is known only when all rows are read.
"""

from bus.auditing import mending
from bus.auditing.judging import (
    NO_CELLS,
    amounts_in_words,
    faults_of,
    is_beside,
    is_in_doubt,
    is_in_flight,
    no_such_cell,
    own_entry,
)
from bus.auditing.of_nova import is_of_nova
from bus.auditing.views import Fault, InstanceView, Places, Sight
from bus.message import ConsumerId  # noqa: TC001 - like every other import
from bus.messages.books import BookEntry

LEAK = "leak"


class NeededClaims:
    """Notes, from the views of all instances, which consumers beside instances may be needed."""

    def __init__(self) -> None:
        # Consumers that a cell counts on or has just freed.
        self._needed: set[ConsumerId] = set()
        # By cell and project (None: unknown), the highest attempt of the instances in doubt.
        self._doubts: dict[tuple[str, str | None], int] = {}

    def note(self, view: InstanceView, sight: Sight) -> None:
        if is_in_doubt(view, own_entry(view)):
            self._note_doubt(view)
        for entry in view.in_cells:
            self._needed.update(
                claim.consumer for claim in entry.claims if claim.consumer != entry.instance.id
            )
            if is_in_flight(view, sight):
                self._needed.update(entry.freed)

    def _note_doubt(self, view: InstanceView) -> None:
        project = None if view.consumer is None else view.consumer.project
        for each in view.on_hosts:
            key = each.cell, project
            self._doubts[key] = max(each.entry.attempt, self._doubts.get(key, 0))

    def may_be_needed(self, view: InstanceView) -> bool:
        return view.id in self._needed or self._may_be_of_doubted(view.consumer)

    def _may_be_of_doubted(self, consumer: BookEntry | None) -> bool:
        """May this be the migration or a cleanup of an instance in doubt? The row that named it may be lost."""
        if consumer is None or not is_beside(consumer):
            return False
        of_any = self._doubts.get((consumer.cell, None), 0)
        return consumer.attempt <= max(of_any, self._doubts.get((consumer.cell, consumer.project), 0))


def is_claim_alone(view: InstanceView) -> bool:
    """True if placement has a claim for this id, and no row of the API level or of a cell has the id.

    Allocations that a program wrote for itself are no claim, nor is what Nova holds.
    """
    consumer = view.consumer
    return (
        view.is_alone
        and consumer is not None
        and bool(consumer.held)
        and consumer.attempt > 0
        and not is_of_nova(consumer)
    )


def faults_alone(view: InstanceView, sight: Sight, places: Places) -> list[Fault]:
    """The faults of a consumer whose id no row has, and that no instance needs."""
    consumer = view.consumer
    if consumer is None or not is_beside(consumer):
        return [*faults_of(view, sight, places)]
    is_unanswered = consumer.cell in sight.known - sight.cells
    if not consumer.held or consumer.is_new or is_unanswered:
        return []
    return [_leak(consumer, sight, places)]


def _leak(consumer: BookEntry, sight: Sight, places: Places) -> Fault:
    """The fault of a migration's or cleanup's consumer that holds resources although no cell needs it."""
    is_known = consumer.cell in (*NO_CELLS, *sight.known)
    what = "move" if consumer.type == "MIGRATION" else "cleanup"
    return Fault(
        LEAK,
        consumer.id,
        f"consumer {consumer.id} of type {consumer.type} holds {amounts_in_words(consumer.held, places)}, and no {what} of any "
        f"instance of cell {consumer.cell} needs it",
        mend=mending.end(consumer) if is_known else None,
        advice="" if is_known else no_such_cell(consumer),
        version=(consumer.generation, consumer.attempt, consumer.held),
    )
