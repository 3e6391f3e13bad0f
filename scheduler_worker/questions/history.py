"""Questions about what was ordered for instances, and about moves."""

from functools import partial

from bus.messages.moves import AskHistory, AskMoves, HistoryFound, MovePlace, MovesFound
from bus.workers.handling import Handlers, answering
from scheduler_worker.core.instances.history import boot_of, with_end
from scheduler_worker.store import ChangeQuery, InstanceQuery, SchedulerStore


def history_questions(store: SchedulerStore) -> Handlers:
    return {
        AskHistory: answering(partial(_history, store)),
        AskMoves: answering(partial(_moves, store)),
    }


async def _history(store: SchedulerStore, question: AskHistory) -> HistoryFound:
    rows = await store.instances(
        InstanceQuery(instances=(question.instance,), project=question.project, limit=1)
    )
    if not rows:
        return HistoryFound(instance=None)
    (row,) = rows
    found = await store.changes(
        ChangeQuery(instance=question.instance, after=question.after, ended=True, limit=question.limit + 1)
    )
    page = [with_end(change, row) for change in found[: question.limit]]
    return HistoryFound(
        instance=row.told,
        changes=(*(() if question.after else (boot_of(row),)), *page),
        next=page[-1].number if len(found) > question.limit else 0,
    )


async def _moves(store: SchedulerStore, question: AskMoves) -> MovesFound:
    found = await store.changes(
        ChangeQuery(host=question.host, ended=question.ended, behind=question.after, limit=question.limit + 1)
    )
    page = found[: question.limit]
    return MovesFound(
        moves=tuple(page),
        next=MovePlace(page[-1].asked_at, page[-1].instance) if len(found) > question.limit else None,
    )
