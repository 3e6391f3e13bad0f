"""The worker loops that read queues. handlers.py says which message goes to which handler."""

from functools import partial

from bus.messages.build import BuildInstance
from scheduler_worker.handlers import (
    cell_broker_handlers,
    event_handlers,
    question_handlers,
    request_handlers,
)
from scheduler_worker.overview.questions import Overviews
from scheduler_worker.questions.explaining import Explainer
from scheduler_worker.questions.planning import Planner
from scheduler_worker.wiring.deciders import Deciders
from scheduler_worker.wiring.given import Given
from scheduler_worker.wiring.knowledge import Knowledge
from scheduler_worker.wiring.sending import Sending


class Queues:
    """The worker loops. `read_requests` and `read_questions` make one for the queue of this name: that for all, or that of
    an application.
    """

    def __init__(self, given: Given, known: Knowledge, deciders: Deciders, sending: Sending) -> None:
        store, picture, plugins, clock = given.store, given.picture, given.plugins, given.clock
        ask = given.station.ask
        outbox, applications = sending.outbox, sending.applications
        self.read_requests = partial(
            given.station.worker,
            handlers=request_handlers(
                deciders.builder,
                known.hosts,
                applications,
                clock,
                given.settings,
                store=store,
                picture=picture,
                aggregates=deciders.aggregates,
                mover=deciders.mover,
                adopter=deciders.adopter,
                know_hosts=known.host_watch.look_again,
            ),
            store=outbox,
            outbox=outbox,
            sweeps=False,
            chance=given.chance,
            before_burial={BuildInstance: (deciders.burial.end_in_error, deciders.burial.release)},
        )
        overviews = Overviews(
            given.station.name,
            store,
            picture,
            cells=known.cells,
            workers=known.workers,
            hosts=known.hosts,
            clock=clock,
        )
        self.read_questions = partial(
            given.station.worker,
            handlers=question_handlers(
                store,
                known.hosts,
                applications,
                deciders.membership,
                {
                    **Planner(picture, plugins, deciders.reader, store, ask).question_handlers(),
                    **Explainer(store, picture, plugins, ask).question_handlers(),
                    **known.consoles.question_handlers(),
                    **overviews.handlers(),
                },
                cells=known.cells,
                picture=picture,
                catch_up=known.replica.catch_up,
            ),
            store=outbox,
            chance=given.chance,
        )
        self.events = given.station.worker(
            "scheduler.events",
            event_handlers(known.hosts, applications, clock, given.cells, deciders.more_alternates),
            outbox,
            chance=given.chance,
        )
        # Of the brokers that have cells only.
        self.events_of_cells = {
            below: below.worker(
                "scheduler.events",
                cell_broker_handlers(known.hosts, clock, deciders.more_alternates),
                outbox,
                chance=given.chance,
                says_by=given.station.publisher,
            )
            for below in given.cells_at
        }
