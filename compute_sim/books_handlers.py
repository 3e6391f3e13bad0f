"""Answers an audit's questions about the instances that this process's hosts have."""

from functools import partial

from bus.messages.books import AskHostBooks, HostBooksFound, HostEntry
from bus.workers.handling import Handlers, answering
from compute_sim.fleet import Fleet
from compute_sim.store import ComputeStore


def books_handlers(fleet: Fleet, store: ComputeStore) -> Handlers:
    return {AskHostBooks: answering(partial(_found, fleet, store))}


async def _found(fleet: Fleet, store: ComputeStore, question: AskHostBooks) -> HostBooksFound:
    """A host that is silent or dead cannot be asked, so nothing is said of it."""
    attempts = await store.living(question.instances, question.after, question.limit)
    at_s = fleet.clock_s()
    named = {*question.hosts, *[each.host for each in attempts]}
    well = {*fleet.well([each for each in named if fleet.get(each) is not None], at_s)}
    return HostBooksFound(
        entries=tuple(
            [
                HostEntry(instance=each.instance, host=each.host, attempt=each.attempt)
                for each in attempts
                if each.host in well
            ]
        ),
        asked=tuple([each for each in question.hosts if each in well]),
        next=attempts[-1].instance if len(attempts) >= question.limit else None,
    )
