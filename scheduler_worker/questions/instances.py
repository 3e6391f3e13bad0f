"""Questions about instances, and the answer to a message that cannot be read."""

from collections.abc import Sequence
from functools import partial

from bus.message import type_of
from bus.messages.build import (
    AskInstances,
    BuildInstance,
    BuildRejected,
    InstancesFound,
    RequestId,
)
from bus.messages.cells import page_that_fits
from bus.topology import CELL0
from bus.unreadable import Unreadable
from bus.workers.handling import Answer, Bury, Handlers, Received, Said, answering
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.core.instances.details import details_of
from scheduler_worker.requests.answering import rejected
from scheduler_worker.store import InstanceQuery, SchedulerStore


def instance_questions(store: SchedulerStore, cells: CellRegistry) -> Handlers:
    return {AskInstances: answering(partial(_instances, store, cells))}


async def _instances(store: SchedulerStore, cells: CellRegistry, question: AskInstances) -> InstancesFound:
    found = await store.instances(
        InstanceQuery(
            instances=question.instances,
            request_id=question.request_id,
            after=question.after,
            state=question.state,
            host=question.host,
            project=question.project,
            name=question.name,
            id_prefix=question.id_prefix,
            request_prefix=question.request_prefix,
            living=question.living,
            # One more than asked tells whether there is another page.
            limit=question.limit + 1,
        )
    )
    fit = page_that_fits([(row.told, details_of(row)) for row in found[: question.limit]])
    page = tuple([told for told, _ in fit])
    return InstancesFound(
        instances=page,
        next=page[-1].id if len(found) > len(page) else None,
        cells=tuple([cells.heard(cell) for cell in sorted({each.cell for each in page} - {"", CELL0})]),
        details=tuple([details for _, details in fit]),
    )


async def on_unreadable_orders(asks: Sequence[Received[Unreadable]]) -> list[Said]:
    """A build request that cannot be read is rejected like an invalid one. Any other order becomes a dead letter, for a
    person to look at, and its sender gets an answer. A message without a type may be either: it is rejected, and
    becomes a dead letter.
    """
    said: list[Said] = []
    for ask in asks:
        why = _why_not(ask.message)
        if ask.message.kind in (type_of(BuildInstance), ""):
            said += rejected(ask, why)
        else:
            said.append(Answer(ask, why))
        if ask.message.kind != type_of(BuildInstance):
            said.append(Bury(ask, why.reason))
    return said


async def on_unreadable_questions(asks: Sequence[Received[Unreadable]]) -> list[Said]:
    said: list[Said] = []
    for ask in asks:
        why = _why_not(ask.message)
        said += [Answer(ask, why), Bury(ask, why.reason)]
    return said


def _why_not(wrong: Unreadable) -> BuildRejected:
    return BuildRejected(
        request_id=None if wrong.request_id is None else RequestId(wrong.request_id),
        field=wrong.field or "message",
        value=wrong.value,
        reason=wrong.reason,
        project=wrong.project,
    )
