"""The outbox, which sends the messages of rows to brokers; and copies of events for applications."""

from datetime import timedelta

from scheduler_worker.applications import Applications
from scheduler_worker.outbox.cell_dispatch import CellDispatch
from scheduler_worker.outbox.notes import OutboxNotes
from scheduler_worker.outbox.outbox import Outbox
from scheduler_worker.wiring.given import Given


class Sending:
    def __init__(self, given: Given) -> None:
        settings, publisher = given.settings, given.station.publisher
        notes = OutboxNotes(given.store, timedelta(seconds=settings.unsaid_s), given.clock)
        self.dispatches = [
            CellDispatch(cells, below, publisher, notes, under_way_max=settings.under_way_max)
            for below, cells in given.cells_at.items()
        ]
        self.outbox = Outbox(given.store, notes, self.dispatches)
        self.applications = Applications(
            given.store, publisher, settings.hosts_poll_s, given.clock, given.chance
        )
